"""Progress of long work on stderr: a spinner with the present step where somebody looks, plain lines elsewhere."""

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
