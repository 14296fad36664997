"""What the test daemon does for a stream: shell (with and without exit codes), sync (push, pull), tcp.

Source: packages/modules/adb/shell_protocol.h, file_sync_protocol.h and SYNC.TXT of Android. Commands run on this
machine, below the phone's folder; `phone.Faults` breaks them on purpose.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.device_runner.daemon import Stream
    from tests.device_runner.phone import Phone

Service = Callable[["Stream"], Awaitable[None]]

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
_CHUNK = 32768
_PIPE = asyncio.subprocess.PIPE


def open_service(phone: Phone, name: str) -> Service | None:
    """The service behind `kind[,options]:argument`, None where the phone has none of that name."""
    kind, _, argument = name.partition(":")
    words = kind.split(",")
    if words[0] in ("shell", "exec"):
        shell = Shell(phone, "v2" in words)
        return lambda stream: shell.run(argument, stream)
    if words[0] == "sync":
        return Sync(phone).run
    if words[0] == "tcp":
        return lambda stream: _connect(int(argument), stream)
    return None


class Shell:
    """A command with its output, as one byte stream or, in v2, as packets: an id, a length, data."""

    def __init__(self, phone: Phone, packets: bool) -> None:
        self._phone, self._packets = phone, packets
        self._lock = asyncio.Lock()
        self._sent = 0

    async def run(self, command: str, stream: Stream) -> None:
        """Run to the end, or until the client closes."""
        if self._phone.faults.hang:
            await stream.read(1 << 30)
        environment = {**os.environ, "PATH": f"{self._phone.root / 'bin'}:{os.environ['PATH']}"}
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", self._phone.here(command)),
            cwd=self._phone.root,
            env=environment,
            start_new_session=True,
            stdin=_PIPE,
            stdout=_PIPE,
            stderr=_PIPE if self._packets else asyncio.subprocess.STDOUT,
            # a shell cannot trap a signal that was ignored when it started, as under nohup
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        watcher = asyncio.create_task(self._take_input(process, stream))
        pipes = [(STDOUT, process.stdout)] + ([(STDERR, process.stderr)] if self._packets else [])
        try:
            await asyncio.gather(*(self._copy(pipe, ident, stream) for ident, pipe in pipes if pipe is not None))
            exit_code = await process.wait()
        finally:
            watcher.cancel()
            self._hang_up(process)
            try:
                await process.wait()
            finally:
                # What the command left running may hold its pipes; asyncio has no public way to let go of them.
                process._transport.close()  # type: ignore[attr-defined]
        if self._packets:
            await stream.write(
                struct.pack("<BIB", EXIT, 1, 0 if self._phone.faults.lose_exit_code else exit_code & 255)
            )

    async def _copy(self, pipe: asyncio.StreamReader, ident: int, stream: Stream) -> None:
        while data := await pipe.read(_CHUNK):
            if self._phone.faults.crlf:
                data = data.replace(b"\n", b"\r\n")
            limit = self._phone.faults.drop_shell_after
            cut = limit is not None and self._sent + len(data) > limit
            if cut:
                assert limit is not None
                data = data[: max(limit - self._sent, 0)]
            async with self._lock:
                if data:
                    await stream.write(struct.pack("<BI", ident, len(data)) + data if self._packets else data)
                self._sent += len(data)
            if cut:
                stream.connection.drop()
                raise ConnectionResetError

    async def _take_input(self, process: asyncio.subprocess.Process, stream: Stream) -> None:
        """Feed the command; a client that closes hangs the command up."""
        assert process.stdin is not None
        try:
            while True:
                if not self._packets:
                    process.stdin.write(await stream.read_some())
                    continue
                ident, length = struct.unpack("<BI", await stream.read(5))
                data = await stream.read(length)
                if ident == CLOSE_STDIN:
                    process.stdin.close()
                elif ident == STDIN:
                    process.stdin.write(data)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._hang_up(process)

    @staticmethod
    def _hang_up(process: asyncio.subprocess.Process) -> None:
        # adbd signals the shell alone, not what the shell started (shell_service.cpp, PassDataStreams).
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGHUP)


class Sync:
    """File transfer: requests of a four-letter id, a length and a path."""

    def __init__(self, phone: Phone) -> None:
        self._phone = phone

    async def run(self, stream: Stream) -> None:
        """Answer requests until QUIT."""
        while True:
            ident, length = struct.unpack("<4sI", await stream.read(8))
            if ident == b"QUIT":
                return
            argument = (await stream.read(length)).decode()
            if ident in (b"STAT", b"STA2", b"LST2"):
                await stream.write(_stat_reply(ident, self._phone.path(argument)))
            elif ident == b"LIST":
                await self._list(self._phone.path(argument), stream)
            elif ident == b"RECV":
                await self._receive(self._phone.path(argument), stream)
            elif ident == b"SEND":
                await self._send(argument, stream)
            else:
                await _fail(stream, f"unknown command {ident!r}")
                return

    async def _list(self, folder: Path, stream: Stream) -> None:
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            status, name = path.lstat(), os.fsencode(path.name)
            entry = struct.pack("<4I", status.st_mode, status.st_size & 0xFFFFFFFF, int(status.st_mtime), len(name))
            await stream.write(b"DENT" + entry + name)
        await stream.write(b"DONE" + bytes(16))

    async def _receive(self, path: Path, stream: Stream) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            await _fail(stream, f"open failed: {error.strerror}")
            return
        for start in range(0, len(content), 65536):
            chunk = content[start : start + 65536]
            await stream.write(b"DATA" + struct.pack("<I", len(chunk)) + chunk)
        await stream.write(b"DONE" + bytes(4))

    async def _send(self, argument: str, stream: Stream) -> None:
        """Take a file; after a failure the rest of it is read and dropped, as adbd does, and the FAIL comes last."""
        name, _, mode = argument.rpartition(",")
        path, problem, received = self._phone.path(name), "", 0
        faults = self._phone.faults
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        except OSError as error:
            problem = f"couldn't create file: {error.strerror}"
        while True:
            ident, length = struct.unpack("<4sI", await stream.read(8))
            if ident == b"DONE":
                break
            data = await stream.read(length)
            if faults.no_space_after is not None and received + length > faults.no_space_after:
                problem = problem or "No space left on device"
            if not problem:
                _append(path, data)
            received += length
            if faults.drop_push_after is not None and received > faults.drop_push_after:
                stream.connection.drop()
                raise ConnectionResetError
        if problem:
            await _fail(stream, problem)
            return
        if faults.corrupt_push:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        path.chmod(int(mode) & 0o777)
        os.utime(path, (length, length))
        await stream.write(b"OKAY" + bytes(4))


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def _fail(stream: Stream, reason: str) -> None:
    message = reason.encode()
    await stream.write(b"FAIL" + struct.pack("<I", len(message)) + message)


def _stat_reply(ident: bytes, path: Path) -> bytes:
    try:
        status, error = (path.lstat() if ident == b"LST2" else path.stat()), 0
    except OSError as missing:
        status, error = None, missing.errno or 0
    if ident == b"STAT":
        fields = (0, 0, 0) if status is None else (status.st_mode, status.st_size & 0xFFFFFFFF, int(status.st_mtime))
        return ident + struct.pack("<3I", *fields)
    if status is None:
        return ident + struct.pack("<I2Q4IQ3q", error, *(0,) * 10)
    times = (int(status.st_atime), int(status.st_mtime), int(status.st_ctime))
    owner = (status.st_nlink, status.st_uid, status.st_gid)
    return ident + struct.pack(
        "<I2Q4IQ3q",
        0,
        status.st_dev,
        status.st_ino,
        status.st_mode,
        *owner,
        status.st_size,
        *times,
    )


async def _connect(port: int, stream: Stream) -> None:
    """Join the stream to a TCP port of this machine, which plays the phone's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def upwards() -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                writer.write(await stream.read_some())
        writer.close()

    task = asyncio.create_task(upwards())
    try:
        while data := await reader.read(_CHUNK):
            await stream.write(data)
    finally:
        task.cancel()
        writer.close()
