"""Progress of long work on stderr: a spinner with the present step where somebody looks, plain lines elsewhere; a bar
where the amount of work is known."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console


@contextmanager
def progress_lines(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that says what is being done now; transformers' own bars are off meanwhile."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if not console.is_terminal:
        yield lambda text: console.print(text, highlight=False)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(text)


@contextmanager
def progress_bar(console: Console, description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that says how many of `total` are done; elsewhere than on a terminal only the end is shown."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.update(task, completed=done)
