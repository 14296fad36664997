"""A loopback adbd: the device's side of the adb protocol, for the real adb client and server.

Source: packages/modules/adb/protocol.txt of Android. A message is six 32-bit words (command, two arguments, length,
checksum, inverted command) and data. Streams have an id on each side and one WRTE in flight. Version 0x01000001
does without checksums. This module moves messages and signs clients in; `daemon_services` does what they ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.device_runner.adb_keys import TOKEN_BYTES, parse_public_key, signature_matches
from tests.device_runner.daemon_services import open_service
from tests.device_runner.phone import Authorization

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from tests.device_runner.daemon_services import Service
    from tests.device_runner.phone import Phone


def _word(text: bytes) -> int:
    return int.from_bytes(text, "little")


CNXN, OPEN, OKAY = _word(b"CNXN"), _word(b"OPEN"), _word(b"OKAY")
WRTE, CLSE, AUTH = _word(b"WRTE"), _word(b"CLSE"), _word(b"AUTH")
VERSION = 0x01000001
MAX_DATA = 256 * 1024
AUTH_TOKEN, AUTH_SIGNATURE, AUTH_PUBLIC_KEY = 1, 2, 3
_HEADER = struct.Struct("<6I")


class Stream:
    """One service call: bytes from the client, bytes to it, until one side closes."""

    def __init__(self, connection: Connection, local: int, remote: int) -> None:
        self.connection, self.local, self.remote = connection, local, remote
        self.closed = False
        self._buffer = bytearray()
        self._arrived, self._acknowledged = asyncio.Event(), asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Send, and wait for the client's OKAY after each message; ConnectionResetError when it closed."""
        for start in range(0, len(data), self.connection.max_data):
            self._acknowledged.clear()
            if self.closed:
                raise ConnectionResetError
            self.connection.send(WRTE, self.local, self.remote, data[start : start + self.connection.max_data])
            await self._acknowledged.wait()

    async def read(self, count: int) -> bytes:
        """Exactly `count` bytes; IncompleteReadError when the client closed before."""
        while len(self._buffer) < count:
            await self._more()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def read_some(self) -> bytes:
        """Whatever came, at least one byte; IncompleteReadError when the client closed."""
        while not self._buffer:
            await self._more()
        return await self.read(len(self._buffer))

    async def _more(self) -> None:
        if self.closed:
            raise asyncio.IncompleteReadError(bytes(self._buffer), None)
        self._arrived.clear()
        await self._arrived.wait()

    def feed(self, data: bytes) -> None:
        """Take a WRTE of the client and acknowledge it."""
        self._buffer += data
        self._arrived.set()
        self.connection.send(OKAY, self.local, self.remote)

    def acknowledge(self) -> None:
        """The client took our last WRTE."""
        self._acknowledged.set()

    def end(self) -> None:
        """The other side is gone: wake whoever waits."""
        self.closed = True
        self._arrived.set()
        self._acknowledged.set()


class Connection:
    """One client (an adb server) and its streams."""

    def __init__(self, phone: Phone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.phone, self.max_data = phone, 4096
        self._reader, self._writer = reader, writer
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._next_id = 1

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        """Write one message."""
        checksum = sum(data) & 0xFFFFFFFF
        self._writer.write(_HEADER.pack(command, first, second, len(data), checksum, command ^ 0xFFFFFFFF) + data)

    def drop(self) -> None:
        """Cut the link, as a pulled cable does."""
        self._writer.transport.abort()

    async def run(self) -> None:
        """Serve until the link ends."""
        try:
            while True:
                command, first, second, length, _, _ = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                self._take(command, first, second, await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writer.close()
            for stream in self._streams.values():
                stream.end()
            await asyncio.gather(*self._tasks)

    def _take(self, command: int, first: int, second: int, data: bytes) -> None:
        stream = self._streams.get(second)
        if command == CNXN:
            self._greet(first, second)
        elif command == AUTH:
            self._sign_in(first, data)
        elif command == OPEN:
            self._open(first, data.rstrip(b"\0").decode())
        elif stream is not None and command == WRTE:
            stream.feed(data)
        elif stream is not None and command == OKAY:
            stream.acknowledge()
        elif stream is not None and command == CLSE:
            self._streams.pop(second).end()

    def _greet(self, version: int, max_data: int) -> None:
        assert version == VERSION
        self.max_data = min(max_data, MAX_DATA)
        if self.phone.faults.mute:
            return
        if self.phone.authorization is Authorization.OPEN:
            self._welcome()
        else:
            self.send(AUTH, AUTH_TOKEN, 0, self._token)

    def _welcome(self) -> None:
        self.send(CNXN, VERSION, MAX_DATA, self.phone.banner)

    def _sign_in(self, kind: int, data: bytes) -> None:
        if kind == AUTH_SIGNATURE and any(signature_matches(key, self._token, data) for key in self.phone.keys):
            self.phone.signed_in += 1
            self._welcome()
        elif kind == AUTH_SIGNATURE:
            self._token = secrets.token_bytes(TOKEN_BYTES)
            self.send(AUTH, AUTH_TOKEN, 0, self._token)
        elif kind == AUTH_PUBLIC_KEY and self.phone.authorization is Authorization.ACCEPTS:
            self.phone.keys.add(parse_public_key(data))
            self._welcome()

    def _open(self, remote: int, name: str) -> None:
        self.phone.services.append(name)
        service = open_service(self.phone, name)
        if service is None:
            self.send(CLSE, 0, remote)
            return
        stream = Stream(self, self._next_id, remote)
        self._next_id += 1
        self._streams[stream.local] = stream
        self.send(OKAY, stream.local, remote)
        task = asyncio.create_task(self._serve(service, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, service: Service, stream: Stream) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await service(stream)
        if self._streams.pop(stream.local, None) is not None:
            self.send(CLSE, stream.local, stream.remote)
        stream.end()


@contextmanager
def running_daemon(phone: Phone) -> Iterator[int]:
    """Serve a phone from a thread of its own; gives the port on 127.0.0.1."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task that asyncio sees cancelled is printed as an error in Python 3.11.
        with contextlib.suppress(asyncio.CancelledError):
            await Connection(phone, reader, writer).run()

    async def stop() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=10)
        # The pipes of ended commands close in the loop's next rounds.
        await asyncio.sleep(0.01)

    def wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=20)

    server: asyncio.Server = wait_for(asyncio.start_server(serve, "127.0.0.1", 0))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        wait_for(stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()
