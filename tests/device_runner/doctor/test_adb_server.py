"""Client and server of one version, of two, and what only looks like a server; no server is ever ended here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from device_runner.adb import AdbClient
from device_runner.doctor.adb_server import (
    ClientVersion,
    ServerAddress,
    find_client,
    look_at_server,
    server_address,
    server_version,
)
from device_runner.doctor.check import Status, examine_value
from device_runner.errors import AdbError, AdbMissingError
from device_runner.transport import Timeout

from .stand_ins import free_port, running_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.device_runner.fake_adb import FakeAdb

CALL = Timeout(5.0)
CLIENT = ClientVersion(AdbClient("/opt/adb"), 41, "29.0.6-debian")


@pytest.mark.adb
def test_the_real_client_and_server(adb: AdbClient) -> None:
    check, version = examine_value("adb client", find_client)
    assert check.status is Status.OK
    assert version is not None
    assert version.client == adb
    finding, client = look_at_server(version, server_address())
    assert finding.status is Status.OK
    assert f"version {version.number} as the client" in finding.found
    assert client == adb


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, ServerAddress("127.0.0.1", 5037)),
        ({"ANDROID_ADB_SERVER_PORT": "5099"}, ServerAddress("127.0.0.1", 5099)),
        ({"ANDROID_ADB_SERVER_ADDRESS": "10.0.0.2"}, ServerAddress("10.0.0.2", 5037)),
        (
            {"ADB_SERVER_SOCKET": "tcp:10.0.0.3:5040", "ANDROID_ADB_SERVER_PORT": "5099"},
            ServerAddress("10.0.0.3", 5040),
        ),
        ({"ADB_SERVER_SOCKET": "tcp:5041"}, ServerAddress("127.0.0.1", 5041)),
        ({"ADB_SERVER_SOCKET": "localfilesystem:/tmp/adb"}, None),
        ({"ANDROID_ADB_SERVER_PORT": "many"}, None),
    ],
)
def test_address(environment: dict[str, str], address: ServerAddress | None) -> None:
    assert server_address(environment) == address


def test_another_version_is_found_and_left_alone() -> None:
    with running_server(b"OKAY00040027") as server:
        finding, client = look_at_server(CLIENT, server.address)
    assert finding.status is Status.PROBLEM
    assert "has version 39, the client 41" in finding.found
    assert "/opt/adb kill-server" in (finding.what_to_do or "")
    assert client is None
    assert server.requests == [b"000chost:version"]


def test_the_same_version() -> None:
    with running_server(b"OKAY00040029") as server:
        finding, client = look_at_server(CLIENT, server.address)
    assert (finding.status, client) == (Status.OK, CLIENT.client)


def test_no_server() -> None:
    address = ServerAddress("127.0.0.1", free_port())
    assert server_version(address, CALL) is None
    finding, client = look_at_server(CLIENT, address)
    assert finding.status is Status.OK
    assert "adb starts one" in finding.found
    assert client == CLIENT.client


def test_no_client_and_no_address() -> None:
    assert look_at_server(None, ServerAddress("127.0.0.1", 1))[0].status is Status.NOT_CHECKED
    finding, client = look_at_server(CLIENT, None)
    assert (finding.status, client) == (Status.NOT_CHECKED, None)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"OKAY0009002", b"FAIL0003no!", b"OKAY" + b"0" * 4096]
)
def test_what_is_no_adb_server(answer: bytes) -> None:
    with (
        running_server(answer) as server,
        pytest.raises(AdbError, match=r"is no adb server .*set ANDROID_ADB_SERVER_PORT"),
    ):
        server_version(server.address, CALL)


def test_a_server_that_is_silent() -> None:
    with running_server(None) as server, pytest.raises(AdbError, match=r"is no adb server .timed out"):
        server_version(server.address, Timeout(0.2))


@pytest.mark.parametrize(
    ("says", "status"),
    [
        ("echo 'Android Debug Bridge version 1.0.39'; echo 'Version 28.0.2-debian'", Status.OK),
        ("echo 'adb: cannot execute binary file' >&2; false", Status.PROBLEM),
    ],
)
def test_client(fake_adb: Callable[..., FakeAdb], monkeypatch: pytest.MonkeyPatch, says: str, status: Status) -> None:
    fake = fake_adb(version=says)
    monkeypatch.setenv("PATH", str(fake.log.parent), prepend=":")
    check, version = examine_value("adb client", find_client)
    assert check.status is status
    if status is Status.OK:
        assert check.found == f"1.0.39 (28.0.2-debian), {fake.client.binary}"
        assert version == ClientVersion(fake.client, 39, "28.0.2-debian")
    assert fake.calls == [["version"]]


def test_no_adb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AdbMissingError):
        find_client()
    check, version = examine_value("adb client", find_client)
    assert (check.status, version) == (Status.PROBLEM, None)
    assert "apt install adb" in check.found
