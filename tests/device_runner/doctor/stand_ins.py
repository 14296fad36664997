"""What may listen on adb's port in place of its server."""

from __future__ import annotations

import contextlib
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from device_runner.doctor.adb_server import ServerAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

_REQUEST_BYTES = len(b"000chost:version")


@dataclass
class ServerStandIn:
    """A port of this machine and everything that was asked there."""

    address: ServerAddress
    requests: list[bytes] = field(default_factory=list)


@contextmanager
def running_server(answer: bytes | None) -> Iterator[ServerStandIn]:
    """Give every client the same answer to its first request and close; None: hold the connection without a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stand_in = ServerStandIn(ServerAddress("127.0.0.1", listener.getsockname()[1]))
        held: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    held.append(connection)
                    stand_in.requests.append(connection.recv(_REQUEST_BYTES, socket.MSG_WAITALL))
                    if answer is not None:
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield stand_in
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)
        for connection in held:
            connection.close()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
