"""Running a command through a shell whose exit code cannot be trusted, by a marker line after the command's output.

    <output of the command>
    HYCO_END_<8 hex digits>:<exit code>

adb loses exit codes (devices before Android 7 have no protocol for them) and ends with 0 when the link is cut, so only
the marker tells a finished command from a broken one. It differs from call to call: a log that holds an earlier marker
ends nothing. This module does not know adb: it gets the program that runs a shell text.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from device_runner.errors import AdbMissingError, CallTimeoutError, DeviceError, LinkLostError
from device_runner.transport import Command, ShellResult, Timeout, excerpt, failed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

_LINE_END = re.compile(r"\r+\n")
_LAST_LINES = 5
_EXIT_GRACE_S = 5.0


@dataclass(frozen=True)
class Finished:
    """A process of this machine that ended; texts are UTF-8 with LF line ends."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class MarkedShell:
    """A shell behind a program of this machine.

    prefix: the program with its arguments; the shell text becomes its last one. cwd: where the program runs.
    explain: turns what the program printed into the error behind it, or None where the words say nothing.
    """

    prefix: tuple[str, ...]
    name: str
    explain: Callable[[str], DeviceError | None]
    cwd: Path | None = None

    def run(self, command: Command, timeout: Timeout) -> ShellResult:
        """Run to the end and take the exit code from the marker; see Transport.shell."""
        marker = _new_marker()
        finished = run_process(self._argv(command, marker), timeout, cwd=self.cwd, label=self._label(command))
        found = re.search(rf"\n?{marker}:(\d+)\s*\Z", finished.stdout)
        if found is None:
            raise self._broken(command, finished.stderr, finished.stdout)
        return ShellResult(command, int(found.group(1)), finished.stdout[: found.start()], finished.stderr)

    def stream(self, command: Command, timeout: Timeout) -> Generator[str, None, None]:
        """Yield the lines of stdout up to the marker; see Transport.stream."""
        marker = _new_marker()
        call = _Call(self._argv(command, marker), timeout, self.cwd, self._label(command))
        last: list[str] = []
        # The marker starts with a line end of its own, which is an empty line where the output ended with one.
        held = False
        with tempfile.TemporaryFile() as stderr, contextlib.closing(_lines(call, stderr)) as lines:
            for line in lines:
                if line.startswith(f"{marker}:"):
                    if exit_code := int(line.partition(":")[2]):
                        # stderr comes beside the marker, and is whole when the client has ended
                        with contextlib.suppress(DeviceError):
                            for _ in lines:
                                pass
                        raise failed(command, exit_code, excerpt(_text_of(stderr), "\n".join(last)))
                    return
                if held:
                    yield ""
                held = line == ""
                if not held:
                    last = [*last, line][-_LAST_LINES:]
                    yield line
            raise self._broken(command, _text_of(stderr), "\n".join(last))

    def _argv(self, command: Command, marker: str) -> list[str]:
        return [*self.prefix, _marked_text(command, marker)]

    def _label(self, command: Command) -> str:
        return f"`{command}` on {self.name}"

    def _broken(self, command: Command, stderr: str, stdout: str) -> DeviceError:
        return self.explain(f"{stderr}\n{stdout}") or LinkLostError(
            f"{self._label(command)} ended without its exit code, so its output is no result: the link broke, or "
            f"the device's shell did not run it; it ended with: {excerpt(stderr, stdout)}"
        )


@dataclass(frozen=True)
class _Call:
    """A program to run, how long, where, and what messages call it."""

    argv: Sequence[str]
    timeout: Timeout
    cwd: Path | None
    label: str


def run_process(
    argv: Sequence[str], timeout: Timeout, *, cwd: Path | None = None, label: str | None = None
) -> Finished:
    """Run a program of this machine to its end, without input; `label` is its name in messages.

    Raises:
        AdbMissingError: it cannot be started.
        CallTimeoutError: it took longer than timeout.total_s; it and its children are ended.
    """
    call = _Call(argv, timeout, cwd, label or f"`{shlex.join(argv)}`")
    with _started(call, subprocess.PIPE) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout.total_s)
        except subprocess.TimeoutExpired:
            _end(process)
            stdout, stderr = process.communicate()
            said = excerpt(_decoded(stderr), _decoded(stdout))
            raise CallTimeoutError(
                f"{call.label} did not end within {timeout.total_s:g} s; last output: {said}"
            ) from None
        except BaseException:
            _end(process)
            raise
    return Finished(process.returncode, _decoded(stdout), _decoded(stderr))


def _lines(call: _Call, stderr: IO[bytes]) -> Generator[str, None, None]:
    """The lines of a program's stdout; ends it when the time is up or the generator is closed."""
    deadline = time.monotonic() + call.timeout.total_s
    arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with _started(call, stderr) as process:
        reader = threading.Thread(target=_read_lines, args=(process.stdout, arrived), daemon=True)
        reader.start()
        try:
            while (line := _next_line(arrived, call, deadline)) is not None:
                yield _decoded(line).rstrip("\r\n")
            # Whoever closed stdout is about to end; stderr is complete only then.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_GRACE_S)
        finally:
            _end(process)
            reader.join()


def _next_line(arrived: queue.SimpleQueue[bytes | None], call: _Call, deadline: float) -> bytes | None:
    remaining = max(deadline - time.monotonic(), 0.0)
    silence = call.timeout.silence_s
    try:
        return arrived.get(timeout=remaining if silence is None else min(silence, remaining))
    except queue.Empty:
        if silence is not None and silence < remaining:
            raise CallTimeoutError(f"{call.label} printed nothing for {silence:g} s") from None
        raise CallTimeoutError(f"{call.label} did not end within {call.timeout.total_s:g} s") from None


def _read_lines(stream: IO[bytes], arrived: queue.SimpleQueue[bytes | None]) -> None:
    for line in stream:
        arrived.put(line)
    arrived.put(None)


def _started(call: _Call, stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            call.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=call.cwd,
            # A session of its own: its children hold our pipes and must be ended with it.
            start_new_session=True,
        )
    except OSError as error:
        raise AdbMissingError(f"{call.argv[0]} cannot be started: {error.strerror}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started; adb's server has a session of its own and stays."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _new_marker() -> str:
    return f"HYCO_END_{secrets.token_hex(4)}"


def _marked_text(command: Command, marker: str) -> str:
    """The shell text: the command, then the marker.

    When the client goes away, the device's daemon sends SIGHUP to this shell alone; the trap, set before the command
    starts, hands it on, so that no runner stays behind and heats the phone.
    """
    inner = shlex.quote(command.shell_text())
    return f"trap 'kill -9 $!; exit 129' HUP; sh -c {inner} </dev/null & wait $!; r=$?; echo; echo {marker}:$r"


def _decoded(raw: bytes) -> str:
    return _LINE_END.sub("\n", raw.decode("utf-8", errors="replace"))


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return _decoded(file.read())
