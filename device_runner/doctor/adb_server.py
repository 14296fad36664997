"""The adb client and its server, looked at without the client: a client of another version ends the server first.

`adb devices` prints "adb server version (41) doesn't match this client (39); killing..." and does so, under every
program that uses the server. Here the server is asked over its socket:

    request    4 hex digits of length, text       000chost:version
    answer     OKAY, 4 hex digits of length, text  OKAY00040029 (version 41)

Source: OVERVIEW.TXT and SERVICES.TXT of Android's packages/modules/adb. Which socket: adb.cpp's order of variables.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.adb import AdbClient
from device_runner.doctor.check import Finding, not_checked, ok, problem
from device_runner.errors import AdbError
from device_runner.marked import run_process
from device_runner.transport import Timeout, excerpt

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT = 5037
LOOPBACK = "127.0.0.1"
"""What adb means by localhost; the name may lead to ::1 too, where its server does not listen."""

_TIMEOUT = Timeout(20.0)
_CLIENT = re.compile(r"Android Debug Bridge version 1\.0\.(\d+)")
_RELEASE = re.compile(r"^Version (\S+)", re.MULTILINE)
_LONGEST_ANSWER = 64


@dataclass(frozen=True)
class ServerAddress:
    """Where the server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ClientVersion:
    """The client: its path, the number that its server must have, and its release."""

    client: AdbClient
    number: int
    release: str


def find_client() -> tuple[Finding, ClientVersion | None]:
    """The adb on the PATH and its version; this does not touch a server."""
    client = AdbClient.find()
    finished = run_process([client.binary, "version"], _TIMEOUT)
    found = _CLIENT.search(finished.stdout)
    if found is None:
        said = excerpt(finished.stderr, finished.stdout)
        return problem(f"`{client.binary} version` says: {said}", "install adb again, or put another on the PATH"), None
    release = _RELEASE.search(finished.stdout)
    version = ClientVersion(client, int(found.group(1)), "release unknown" if release is None else release.group(1))
    return ok(f"1.0.{version.number} ({version.release}), {client.binary}"), version


def server_address(environment: Mapping[str, str] = os.environ) -> ServerAddress | None:
    """The server's address as adb itself finds it; None where it is no TCP socket."""
    given = environment.get("ADB_SERVER_SOCKET")
    if given is not None:
        found = re.fullmatch(r"tcp:(?:(?P<host>.+):)?(?P<port>\d+)", given)
        return None if found is None else _address(found["host"], found["port"])
    port = environment.get("ANDROID_ADB_SERVER_PORT") or str(DEFAULT_PORT)
    return _address(environment.get("ANDROID_ADB_SERVER_ADDRESS"), port) if port.isdigit() else None


def look_at_server(client: ClientVersion | None, address: ServerAddress | None) -> tuple[Finding, AdbClient | None]:
    """Whether the client may be used: with a server of its version, or with none, which it then starts."""
    if client is None:
        return not_checked("there is no adb client to compare the server with"), None
    if address is None:
        return not_checked("the environment names a server that is no TCP socket", "unset ADB_SERVER_SOCKET"), None
    number = server_version(address, _TIMEOUT)
    if number is None:
        return ok(f"none runs at {address}; adb starts one with its first call"), client.client
    if number != client.number:
        return (
            problem(
                f"the server at {address} has version {number}, the client {client.number}: the client's first call "
                "would end that server, and whatever uses it",
                "use one adb on this machine (often two are installed: a distribution's and Google's platform-tools); "
                f"then `{client.client.binary} kill-server`, or give this one a port of its own: "
                "ANDROID_ADB_SERVER_PORT",
            ),
            None,
        )
    return ok(f"answers at {address}, version {number} as the client"), client.client


def server_version(address: ServerAddress, timeout: Timeout) -> int | None:
    """The number of the server that listens there, None where nothing does.

    Raises:
        AdbError: something listens that does not answer as an adb server.
    """
    request = b"host:version"
    try:
        with socket.create_connection((address.host, address.port), timeout=timeout.total_s) as connection:
            connection.sendall(f"{len(request):04x}".encode() + request)
            answer = _read_to_end(connection)
    except ConnectionRefusedError:
        return None
    except OSError as error:
        raise AdbError(_no_server(address, str(error) or type(error).__name__)) from error
    found = re.fullmatch(rb"OKAY([0-9a-fA-F]{4})([0-9a-fA-F]+)", answer)
    if found is None or int(found.group(1), 16) != len(found.group(2)):
        raise AdbError(_no_server(address, f"it answered {answer[:32]!r}"))
    return int(found.group(2), 16)


def _address(host: str | None, port: str) -> ServerAddress:
    return ServerAddress(LOOPBACK if host in (None, "", "localhost") else host, int(port))


def _no_server(address: ServerAddress, what: str) -> str:
    return (
        f"what listens at {address} is no adb server ({what}): end that program, or set ANDROID_ADB_SERVER_PORT to a "
        "free port"
    )


def _read_to_end(connection: socket.socket) -> bytes:
    """The answer; the server closes behind it. Bounded, for whoever else may answer."""
    answer = b""
    while len(answer) < _LONGEST_ANSWER and (chunk := connection.recv(_LONGEST_ANSWER)):
        answer += chunk
    return answer
