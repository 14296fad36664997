"""A process that is told to end (`timeout`, a closed terminal) cleans up first, as on Ctrl-C.

Without this, SIGTERM and SIGHUP end Python on the spot: unfinished folders stay here, a phone keeps what was pushed and
stays awake.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_NAMES = ("SIGTERM", "SIGHUP")


def stop_on_signals() -> None:
    """From now on SIGTERM and SIGHUP raise SystemExit(128 + number); one that is ignored (`nohup`) stays so."""
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends at once
    raise SystemExit(128 + number)
