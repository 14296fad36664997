"""This machine as the device: a folder stands for the phone's, programs run under the host's shell.

It serves development and tests; figures taken over it are the host's, and its `name` says so.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.errors import DeviceError, NoSpaceError, PushError
from device_runner.marked import MarkedShell
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from device_runner.transport import Command, ShellResult, Timeout


@dataclass(frozen=True)
class LocalTransport:
    """`Transport` to a folder of this machine. Paths on the "device" are the host's; files stay below `root`."""

    root: Path

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise UsageError(f"{self.root} is no folder: make it first, it stands for the device's")

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"this machine ({self.root})"

    @property
    def work_dir(self) -> str:
        """The folder itself."""
        return str(self.root.absolute())

    def shell(self, command: Command, timeout: Timeout) -> ShellResult:
        """Run a command in the folder; see Transport."""
        return self._shell().run(command, timeout)

    def stream(self, command: Command, timeout: Timeout) -> Generator[str, None, None]:
        """Yield the lines of a command as they come; see Transport."""
        return self._shell().stream(command, timeout)

    def push_file(self, local: Path, remote: str, timeout: Timeout) -> None:
        """Copy a file into the folder; a copy on one machine is not timed."""
        target = self._inside(remote)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(local, target)
        except OSError as error:
            kind = NoSpaceError if error.errno == errno.ENOSPC else PushError
            raise kind(f"{local.name} was not copied to {target}: {error.strerror}") from error

    def pull_file(self, remote: str, local: Path, timeout: Timeout) -> None:
        """Copy a file out of the folder; a copy on one machine is not timed."""
        partial = local.with_name(f"{local.name}.part")
        try:
            shutil.copy2(self._inside(remote), partial)
            os.replace(partial, local)
        except OSError as error:
            raise DeviceError(f"{remote} was not copied to {local}: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)

    @contextmanager
    def forward(self, remote_port: int, timeout: Timeout) -> Iterator[int]:
        """The port itself: there is nothing between."""
        yield remote_port

    def _shell(self) -> MarkedShell:
        return MarkedShell(("sh", "-c"), self.name, lambda output: None, self.root)

    def _inside(self, remote: str) -> Path:
        target = Path(os.path.normpath(self.root.absolute() / remote))
        if not target.is_relative_to(self.root.absolute()):
            raise DeviceError(
                f"{remote} is outside {self.root}: files stay below the folder that stands for the device"
            )
        return target
