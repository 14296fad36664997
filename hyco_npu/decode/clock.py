"""Where a round's time goes: seconds by phase, phases nested without counting anything twice."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """One for a text. A phase's seconds are those inside its `with` blocks, without what inner phases took."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time to `name`, "side.part", such as "device.mtp" or "server.forward"."""
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Book `seconds` of a phase that has ended to another: who did the work has told how long it took."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call. Called inside a phase, it takes that phase's time so far."""
        self._book()
        taken, self._seconds = self._seconds, {}
        return taken

    def _book(self) -> None:
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now
