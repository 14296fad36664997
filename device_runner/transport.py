"""How a device is reached: one small protocol, so that adb, this machine and a recorded session swap.

    AdbTransport        device_runner.adb         a phone
    LocalTransport      device_runner.local       a folder of this machine
    RecordedTransport   device_runner.recorded    the answers of an earlier session, from a file

What can be done by running a command (free space, checksums, removal) is no part of the protocol: it is written once,
on `shell`, in `device_runner.remote_files`. This module does not know what runs on the device.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from device_runner.errors import CommandError
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class Timeout:
    """How long a call may take, in seconds.

    total_s bounds the whole call; silence_s, for streams only, the time between two lines.
    """

    total_s: float
    silence_s: float | None = None

    def __post_init__(self) -> None:
        for seconds in (self.total_s, self.silence_s):
            if seconds is not None and not seconds > 0:
                raise UsageError(f"a timeout of {seconds} s is not positive")


@dataclass(frozen=True)
class Command:
    """A program with its arguments, its folder and its environment; quoting is nobody else's concern.

    argv[0] is a program, not a builtin of the shell; a script is ("sh", "-c", script, "sh", *arguments).
    cwd None is the transport's own folder.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError("a command needs at least the name of a program")
        for name in self.env:
            if not _VARIABLE.match(name):
                raise UsageError(f"{name!r} is no name of an environment variable")
        if any("\0" in text for text in (*self.argv, *self.env.values(), self.cwd or "")):
            raise UsageError(f"a command cannot carry a NUL character: {self.argv!r}")

    def shell_text(self) -> str:
        """The command for `sh -c`. The program takes the shell's place, so a signal to the process reaches it."""
        steps = [] if self.cwd is None else [f"cd {shlex.quote(self.cwd)}"]
        steps += [f"export {name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " && ".join([*steps, f"exec {shlex.join(self.argv)}"])

    def __str__(self) -> str:
        return shlex.join(self.argv)


def script(text: str, *arguments: str) -> Command:
    """A shell script as a command; its arguments are $1, $2, ..."""
    return Command(("sh", "-c", text, "sh", *arguments))


@dataclass(frozen=True)
class ShellResult:
    """What a command that ran to its end left.

    stdout has LF line ends whatever the device sends. stderr is empty on devices whose adb protocol has one stream only
    (before Android 7): there it is part of stdout.
    """

    command: Command
    exit_code: int
    stdout: str
    stderr: str = ""

    def checked(self) -> str:
        """The standard output.

        Raises:
            CommandError: the exit code is not 0.
        """
        if self.exit_code != 0:
            raise failed(self.command, self.exit_code, excerpt(self.stderr, self.stdout))
        return self.stdout


class Transport(Protocol):
    """A way to a device.

    Every method raises CallTimeoutError when its time is up, LinkLostError when the device is gone in the middle, and
    DeviceStateError where adb sees the device but cannot use it.
    """

    @property
    def name(self) -> str:
        """The device in messages: its serial, or the folder that stands for it."""

    @property
    def work_dir(self) -> str:
        """The absolute path of the device's folder where files may be written and run."""

    def shell(self, command: Command, timeout: Timeout) -> ShellResult:
        """Run a command to its end; an exit code other than 0 is a result, a missing one an error."""

    def stream(self, command: Command, timeout: Timeout) -> Generator[str, None, None]:
        """The lines of a command's stdout as they come. Lines are a result only if the iteration ends by itself.

        The command starts when the first line is asked for; closing the generator early ends it. Raises CommandError at
        the end when the exit code is not 0.
        """

    def push_file(self, local: Path, remote: str, timeout: Timeout) -> None:
        """Copy a file to the device, with its mode. The arrival is not verified here: `device_runner.push` does that.

        Raises:
            PushError: the transfer failed; NoSpaceError where the reason is known to be space.
        """

    def pull_file(self, remote: str, local: Path, timeout: Timeout) -> None:
        """Copy a file from the device; `local` appears only when the transfer is complete."""

    def forward(self, remote_port: int, timeout: Timeout) -> AbstractContextManager[int]:
        """A TCP port of this machine that leads to a port of the device, while the context lasts."""


def failed(command: Command, exit_code: int, said: str) -> CommandError:
    """The error for a command that ended with another exit code than 0."""
    return CommandError(f"`{command}` ended with exit code {exit_code} on the device: {said}")


def excerpt(*texts: str) -> str:
    """The end of the first text that is not blank, for a message."""
    for text in texts:
        shown = text.strip()
        if shown:
            return shown if len(shown) <= _SHOWN_CHARACTERS else f"... {shown[-_SHOWN_CHARACTERS:]}"
    return "it printed nothing"
