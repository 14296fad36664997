"""A stand-in for `hyco_runner serve`: the same frames, answered by a Python function."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np


def frame(payload: bytes) -> bytes:
    return struct.pack("<Q", len(payload)) + payload


@contextlib.contextmanager
def stand_in(answer: Callable[[dict[str, Any], dict[str, np.ndarray]], dict[str, Any] | bytes]) -> Iterator[int]:
    """Serve one client; gives the port. `answer` makes a JSON object, or the raw bytes after which it hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, answer), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def _serve(listener: socket.socket, answer: Any) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as stream:
        while head := stream.read(8):
            raw = stream.read(struct.unpack("<Q", head)[0])
            header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
            made = answer(json.loads(header["__metadata__"]["event"]), load(raw))
            if isinstance(made, bytes):
                connection.sendall(made)
                return
            connection.sendall(frame(json.dumps(made).encode()))
