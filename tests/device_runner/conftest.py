"""A phone on the loopback, an adb server of its own for it, and a scripted adb for what no real one can be made to do.

No test here talks to the adb server of this machine's user: the port and the home folder with adb's keys are the tests'
own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from device_runner.adb import AdbClient, AdbTransport
from device_runner.transport import Timeout
from tests.device_runner.daemon import running_daemon
from tests.device_runner.fake_adb import write_fake_adb
from tests.device_runner.phone import Phone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.device_runner.fake_adb import FakeAdb

CALL = Timeout(20.0)


@pytest.fixture(scope="session")
def adb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An adb server on a free port, with keys in a home of its own; gives the variables that lead to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"ANDROID_ADB_SERVER_PORT": str(port), "HOME": str(tmp_path_factory.mktemp("adb-home"))}
    environment = {**os.environ, **variables}
    subprocess.run(["adb", "start-server"], env=environment, check=True, capture_output=True, timeout=30)
    yield variables
    subprocess.run(["adb", "kill-server"], env=environment, check=False, capture_output=True, timeout=30)


@pytest.fixture
def adb(adb_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AdbClient:
    """The real client, led to the tests' server."""
    for name, value in adb_server.items():
        monkeypatch.setenv(name, value)
    return AdbClient.find()


@pytest.fixture
def phone(tmp_path: Path) -> Phone:
    """A phone that nobody has connected to yet: set its tables and faults first."""
    return Phone(tmp_path / "phone")


@pytest.fixture
def connect(adb: AdbClient) -> Iterator[Callable[[Phone], AdbTransport]]:
    """Start a phone's daemon and let adb connect to it; gives its transport."""
    with contextlib.ExitStack() as stack:

        def start(phone: Phone) -> AdbTransport:
            serial = f"127.0.0.1:{stack.enter_context(running_daemon(phone))}"
            stack.callback(_adb, adb, "disconnect", serial)
            _adb(adb, "connect", serial)
            return adb.transport(serial)

        yield start


@pytest.fixture
def device(phone: Phone, connect: Callable[[Phone], AdbTransport]) -> AdbTransport:
    """A connected, healthy phone."""
    return connect(phone)


@pytest.fixture
def fake_adb(tmp_path: Path) -> Callable[..., FakeAdb]:
    """Make a scripted adb client: see fake_adb.py."""
    return lambda **answers: write_fake_adb(tmp_path / "fake-adb", **answers)


def _adb(client: AdbClient, *arguments: str) -> str:
    return subprocess.run([client.binary, *arguments], check=False, capture_output=True, text=True, timeout=30).stdout


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
