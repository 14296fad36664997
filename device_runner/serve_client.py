"""The host's end of `hyco_runner serve`: one request, one answer, over a TCP connection (device_runner/native/serve.h).

A frame is 8 bytes of length, little-endian, and a payload. A request is a safetensors file in memory whose metadata
"event" is JSON; an answer is JSON. This module knows no drafters: it carries events and arrays.
"""

from __future__ import annotations

import json
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save

from device_runner.errors import CallTimeoutError, LinkLostError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA_VERSION = 1
_LENGTH = struct.Struct("<Q")
_LARGEST_ANSWER_BYTES = 1 << 24


class ServeClient:
    """A connection to a runner that serves; `name` is the device in messages."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._connection, self._name = connection, name

    def request(self, event: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
        """The runner's answer to an event.

        Raises:
            RunnerError: the runner refused it, in its words, or answered what is no JSON object.
            LinkLostError: the connection ended before the answer did.
            CallTimeoutError: no answer within the connection's time.
        """
        # The format wants a tensor, and rows that lie one after the other.
        tensors = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        payload = save(tensors or {"none": np.zeros(1, np.uint8)}, {"event": json.dumps(event)})
        try:
            self._connection.sendall(_LENGTH.pack(len(payload)) + payload)
            answer = self._receive()
        except TimeoutError as error:
            raise CallTimeoutError(
                f"the runner on {self._name} gave no answer to {event.get('event')!r} within "
                f"{self._connection.gettimeout():g} s"
            ) from error
        except OSError as error:
            raise self._lost(str(error)) from error
        if "error" in answer:
            raise RunnerError(f"the runner on {self._name} refused {event.get('event')!r}: {answer['error']}")
        return answer

    def _receive(self) -> dict[str, Any]:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _LARGEST_ANSWER_BYTES:
            raise RunnerError(f"what answers on {self._name} announces {length:,} bytes: it is no hyco_runner")
        raw = self._read(length)
        try:
            answer = json.loads(raw)
        except ValueError as error:
            raise RunnerError(f"the runner on {self._name} answered what is no JSON: {raw[:80]!r}") from error
        if not isinstance(answer, dict):
            raise RunnerError(f"the runner on {self._name} answered {answer!r}, which is no JSON object")
        return answer

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = self._connection.recv(min(size, 1 << 16))
            if not part:
                raise self._lost("it was closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _lost(self, why: str) -> LinkLostError:
        return LinkLostError(f"the connection to the runner on {self._name} broke in the middle of a round: {why}")


@contextmanager
def connected(port: int, name: str, timeout_s: float) -> Iterator[ServeClient]:
    """A client of the runner behind a port of this machine; each answer may take `timeout_s`.

    Raises LinkLostError where nothing listens.
    """
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    except OSError as error:
        raise LinkLostError(f"nothing listens for the runner on {name} at port {port}: {error}") from error
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield ServeClient(connection, name)
