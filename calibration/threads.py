"""One thread for torch: the last bits of a sum may depend on how many there are, and ranges must not."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread meanwhile, and on as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
