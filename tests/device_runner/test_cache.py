"""The cache's place, and a device that one command has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from device_runner.cache import cache_path, device_to_ourselves
from device_runner.errors import DeviceBusyError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_path("hub.json") == tmp_path / "cache/hyco-npu/hub.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path("hub.json") == tmp_path / ".cache/hyco-npu/hub.json"


def test_a_device_is_one_commands() -> None:
    """The lock is the opened file's, so a second one in this process stands for another process."""
    serial = "adb-R3CT1-x (2)._adb-tls-connect._tcp"
    with device_to_ourselves(serial):
        with device_to_ourselves("127.0.0.1:5555"):
            pass
        with pytest.raises(DeviceBusyError, match=rf"\(process {os.getpid()}\) uses adb-R3CT1-x \(2\)"):
            _take(serial)
    _take(serial)


def test_a_failure_gives_the_device_back() -> None:
    with pytest.raises(ZeroDivisionError), device_to_ourselves("R3CT1"):
        raise ZeroDivisionError
    _take("R3CT1")


def _take(serial: str) -> None:
    with device_to_ourselves(serial):
        pass
