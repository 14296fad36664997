"""A phone over the adb client; why the client and no library is told in docs/decisions/0011-adb-client.md.

Every call that concerns a device carries `-s SERIAL`. What adb prints is used to explain a failure, never to establish
a success: exit codes come by a marker (`device_runner.marked`), files are compared by size and sha256
(`device_runner.push`).
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.errors import (
    AdbError,
    AdbMissingError,
    DeviceError,
    DeviceStateError,
    LinkLostError,
    NoSpaceError,
    PushError,
)
from device_runner.marked import Finished, MarkedShell, run_process
from device_runner.states import refused_state, state_message
from device_runner.transport import Timeout, excerpt

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from device_runner.transport import Command, ShellResult

DEVICE_WORK_DIR = "/data/local/tmp"
"""The folder of a phone where the shell user may write and run programs."""

_GONE = re.compile(
    r"device '[^']*' not found|no devices/emulators found|device .*(?:disconnected|went away)|error: closed"
)
_NO_SPACE = "No space left on device"
_ADB_ERROR = re.compile(r"^adb: error:|failed to copy", re.MULTILINE)


@dataclass(frozen=True)
class AdbClient:
    """The adb program of this machine; it starts its server by itself where none runs."""

    binary: str

    @classmethod
    def find(cls) -> AdbClient:
        """The client on the PATH.

        Raises:
            AdbMissingError: there is none.
        """
        binary = shutil.which("adb")
        if binary is None:
            raise AdbMissingError("adb is not installed: `apt install adb`, or Google's platform-tools on the PATH")
        return cls(binary)

    def devices_text(self, timeout: Timeout) -> str:
        """What `adb devices` prints; `device_runner.states.parse_devices` reads it."""
        finished = run_process([self.binary, "devices"], timeout)
        if finished.exit_code != 0:
            raise AdbError(f"`adb devices` failed: {excerpt(finished.stderr, finished.stdout)}")
        return finished.stdout

    def transport(self, serial: str) -> AdbTransport:
        """The way to one device; nothing is sent yet."""
        return AdbTransport(self, serial)


@dataclass(frozen=True)
class AdbTransport:
    """`Transport` over adb."""

    client: AdbClient
    serial: str

    @property
    def name(self) -> str:
        """The serial."""
        return self.serial

    @property
    def work_dir(self) -> str:
        """The folder for pushed programs."""
        return DEVICE_WORK_DIR

    def shell(self, command: Command, timeout: Timeout) -> ShellResult:
        """Run a command on the device; see Transport."""
        return self._shell().run(command, timeout)

    def stream(self, command: Command, timeout: Timeout) -> Generator[str, None, None]:
        """Yield the lines of a command as they come; see Transport."""
        return self._shell().stream(command, timeout)

    def push_file(self, local: Path, remote: str, timeout: Timeout) -> None:
        """Copy a file to the device; see Transport."""
        finished = run_process(self._argv("push", str(local.absolute()), remote), timeout)
        said = f"{finished.stderr}\n{finished.stdout}"
        if _NO_SPACE in said:
            raise NoSpaceError(f"{self.serial} has no space left for {local.name} at {remote}: {excerpt(said)}")
        # adb counts the file as pushed, and may end with 0, after an error of its own.
        if finished.exit_code != 0 or _ADB_ERROR.search(said):
            raise self._explained(said) or PushError(f"{local.name} was not pushed to {remote}: {excerpt(said)}")

    def pull_file(self, remote: str, local: Path, timeout: Timeout) -> None:
        """Copy a file from the device; see Transport."""
        partial = local.with_name(f"{local.name}.part")
        try:
            finished = run_process(self._argv("pull", remote, str(partial.absolute())), timeout)
            if finished.exit_code != 0 or not partial.is_file():
                raise self._failure(f"{remote} was not pulled", finished)
            os.replace(partial, local)
        finally:
            partial.unlink(missing_ok=True)

    @contextmanager
    def forward(self, remote_port: int, timeout: Timeout) -> Iterator[int]:
        """A local port that leads to the device's; see Transport."""
        finished = run_process(self._argv("forward", "tcp:0", f"tcp:{remote_port}"), timeout)
        if finished.exit_code != 0 or not finished.stdout.strip().isdigit():
            raise self._failure(f"port {remote_port} of {self.serial} was not forwarded", finished)
        local_port = int(finished.stdout)
        try:
            yield local_port
        finally:
            # A forward dies with its device, so a failure here has nothing left to undo.
            run_process(self._argv("forward", "--remove", f"tcp:{local_port}"), timeout)

    def _argv(self, *arguments: str) -> list[str]:
        return [self.client.binary, "-s", self.serial, *arguments]

    def _shell(self) -> MarkedShell:
        return MarkedShell(tuple(self._argv("shell")), self.serial, self._explained)

    def _failure(self, what: str, finished: Finished) -> DeviceError:
        said = f"{finished.stderr}\n{finished.stdout}"
        return self._explained(said) or AdbError(f"{what}: {excerpt(said)}")

    def _explained(self, output: str) -> DeviceError | None:
        """The error behind what adb printed, where its words are known."""
        state = refused_state(output)
        if state is not None:
            return DeviceStateError(state_message(self.serial, state))
        if _GONE.search(output):
            return LinkLostError(f"device {self.serial} is not connected any more: {excerpt(output)}")
        return None
