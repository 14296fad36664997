"""A session with a device kept in a file, and the transport that replays it where there is no device.

The file is JSON lines: a header {schema, name, work_dir}, then one object a call, in order: {call, key, result} or
{call, key, error}. Replay is strict: the same calls in the same order, so a test notices a call that came,
went or changed.
"""

from __future__ import annotations

import base64
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from device_runner import errors
from device_runner.errors import DeviceError, RecordingError
from device_runner.transport import Command, ShellResult, Timeout, Transport

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

SCHEMA = "hyco-npu/device-session/1"


def _key(command: Command) -> dict[str, Any]:
    return {"argv": list(command.argv), "cwd": command.cwd, "env": dict(command.env)}


@dataclass(frozen=True)
class RecordingTransport:
    """Passes every call to `inner` and appends it with its outcome to `file`, which it starts anew."""

    inner: Transport
    file: Path

    def __post_init__(self) -> None:
        header = {"schema": SCHEMA, "name": self.inner.name, "work_dir": self.inner.work_dir}
        self.file.write_text(json.dumps(header) + "\n", encoding="utf-8")

    @property
    def name(self) -> str:
        """The inner transport's name."""
        return self.inner.name

    @property
    def work_dir(self) -> str:
        """The inner transport's folder."""
        return self.inner.work_dir

    def shell(self, command: Command, timeout: Timeout) -> ShellResult:
        """Run a command and record what it left; see Transport."""
        with self._recorded("shell", _key(command)) as entry:
            result = self.inner.shell(command, timeout)
            entry["result"] = {"exit_code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}
        return result

    def stream(self, command: Command, timeout: Timeout) -> Generator[str, None, None]:
        """Yield a command's lines and record them, also those before an error; see Transport."""
        with self._recorded("stream", _key(command)) as entry:
            entry["result"] = lines = []
            for line in self.inner.stream(command, timeout):
                lines.append(line)
                yield line

    def push_file(self, local: Path, remote: str, timeout: Timeout) -> None:
        """Copy a file to the device and record that; see Transport."""
        with self._recorded("push_file", remote):
            self.inner.push_file(local, remote, timeout)

    def pull_file(self, remote: str, local: Path, timeout: Timeout) -> None:
        """Copy a file from the device and record its bytes; see Transport."""
        with self._recorded("pull_file", remote) as entry:
            self.inner.pull_file(remote, local, timeout)
            entry["result"] = base64.b64encode(local.read_bytes()).decode("ascii")

    @contextmanager
    def forward(self, remote_port: int, timeout: Timeout) -> Iterator[int]:
        """Forward a port and record which; see Transport."""
        with self.inner.forward(remote_port, timeout) as local_port:
            with self._recorded("forward", remote_port) as entry:
                entry["result"] = local_port
            yield local_port

    @contextmanager
    def _recorded(self, call: str, key: object) -> Iterator[dict[str, Any]]:
        entry: dict[str, Any] = {"call": call, "key": key}
        try:
            yield entry
        except DeviceError as error:
            entry["error"] = {"type": type(error).__name__, "message": str(error)}
            raise
        finally:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(entry, ensure_ascii=False) + "\n")


@dataclass
class RecordedTransport:
    """Answers from a recorded session; forwarded ports are the recorded numbers and lead nowhere.

    Raises RecordingError for a damaged file and for any call that the recording does not hold next.
    """

    file: Path
    name: str = field(init=False)
    work_dir: str = field(init=False)
    _calls: list[dict[str, Any]] = field(init=False, repr=False)
    _position: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        try:
            header, *self._calls = [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise RecordingError(f"{self.file} is not a recorded session: {error}") from error
        if not isinstance(header, dict) or header.get("schema") != SCHEMA:
            raise RecordingError(f"{self.file} does not start with a header of schema {SCHEMA!r}")
        self.name, self.work_dir = str(header["name"]), str(header["work_dir"])

    @property
    def remaining(self) -> int:
        """How many recorded calls were not made yet."""
        return len(self._calls) - self._position

    def shell(self, command: Command, timeout: Timeout) -> ShellResult:
        """The recorded outcome of a command; see Transport."""
        result = self._result(self._next("shell", _key(command)))
        return ShellResult(command, result["exit_code"], result["stdout"], result["stderr"])

    def stream(self, command: Command, timeout: Timeout) -> Generator[str, None, None]:
        """The recorded lines of a command, then its recorded error if it had one; see Transport."""
        entry = self._next("stream", _key(command))
        yield from entry["result"]
        self._result(entry)

    def push_file(self, local: Path, remote: str, timeout: Timeout) -> None:
        """The recorded outcome of a push; nothing is copied."""
        self._result(self._next("push_file", remote))

    def pull_file(self, remote: str, local: Path, timeout: Timeout) -> None:
        """Write the recorded bytes of a file; see Transport."""
        content = base64.b64decode(self._result(self._next("pull_file", remote)))
        partial = local.with_name(f"{local.name}.part")
        partial.write_bytes(content)
        os.replace(partial, local)

    @contextmanager
    def forward(self, remote_port: int, timeout: Timeout) -> Iterator[int]:
        """The recorded local port."""
        yield int(self._result(self._next("forward", remote_port)))

    def _next(self, call: str, key: object) -> dict[str, Any]:
        if not self.remaining:
            raise RecordingError(f"{self.file} holds {len(self._calls)} calls, and {call} {key} comes after them")
        entry = self._calls[self._position]
        if (entry["call"], entry["key"]) != (call, key):
            raise RecordingError(
                f"call {self._position + 1} of {self.file} is {entry['call']} {entry['key']}, not {call} {key}"
            )
        self._position += 1
        return entry

    @staticmethod
    def _result(entry: dict[str, Any]) -> Any:
        error = entry.get("error")
        if error is None:
            return entry.get("result")
        kind = getattr(errors, error["type"], None)
        if not (isinstance(kind, type) and issubclass(kind, DeviceError)):
            raise RecordingError(f"the recording holds an unknown error {error['type']!r}: {error['message']}")
        raise kind(error["message"])
