"""What this machine keeps between commands: $XDG_CACHE_HOME/hyco-npu, ~/.cache/hyco-npu without it."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.errors import DeviceBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator


def cache_path(name: str) -> Path:
    """A file or folder of the cache, which may not be there yet."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hyco-npu" / name


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Processes that want the same thing made in `folder`: the second waits, and finds it there."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def device_to_ourselves(serial: str) -> Iterator[None]:
    """A device for this process alone: two that push to it, or time it, would spoil each other's work.

    Raises DeviceBusyError where another process of this machine has it; other machines are not seen.
    """
    folder = cache_path("devices")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(serial.encode()).hexdigest()[:16]}.lock"
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise DeviceBusyError(
                f"another hyco-npu command (process {holder}) uses {serial}: wait for it, or end it"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
