"""Work in one process or in several, with one thread each, so that the numbers do not depend on how many there are."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from calibration.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class Jobs:
    """Runs a module-level function on tasks, results in order; `count` processes live as long as `open_jobs` does."""

    def __init__(self, pool: ProcessPoolExecutor | None) -> None:
        self._pool = pool

    def run(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        """`function` of every task; its exception is raised here."""
        return list(map(function, tasks) if self._pool is None else self._pool.map(function, tasks))


@contextmanager
def open_jobs(count: int) -> Iterator[Jobs]:
    """Processes for `count` tasks at a time; with 1 the work stays in this one, on one thread meanwhile."""
    if count > 1:
        # spawned: forked children of a process with threads of torch and ONNX Runtime may hang
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield Jobs(pool)
        return
    with one_thread():
        yield Jobs(None)
