"""The test daemon's own doors: what it accepts as a key, against signatures that the real adb makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from device_runner.errors import DeviceStateError
from device_runner.transport import Command
from tests.device_runner.conftest import CALL, wait_until
from tests.device_runner.phone import Authorization, Phone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbClient, AdbTransport

pytestmark = pytest.mark.adb

HELLO = Command(("echo", "hello"))


def _usable(adb: AdbClient, device: AdbTransport) -> bool:
    return f"{device.serial}\tdevice" in adb.devices_text(CALL)


def test_a_key_is_asked_for_once_and_proved_afterwards(
    tmp_path: Path, adb: AdbClient, connect: Callable[[Phone], AdbTransport]
) -> None:
    asked = Phone(tmp_path / "asked", authorization=Authorization.ACCEPTS)
    device = connect(asked)
    assert wait_until(lambda: _usable(adb, device))
    assert (len(asked.keys), asked.signed_in) == (1, 0)

    knows_it = Phone(tmp_path / "knows", authorization=Authorization.REFUSES, keys=set(asked.keys))
    assert connect(knows_it).shell(HELLO, CALL).checked() == "hello\n"
    assert knows_it.signed_in == 1


def test_another_key_does_not_open(tmp_path: Path, adb: AdbClient, connect: Callable[[Phone], AdbTransport]) -> None:
    asked = Phone(tmp_path / "asked", authorization=Authorization.ACCEPTS)
    device = connect(asked)
    assert wait_until(lambda: _usable(adb, device))
    ((modulus, exponent),) = asked.keys
    other = Phone(tmp_path / "other", authorization=Authorization.REFUSES, keys={(modulus + 2, exponent)})
    with pytest.raises(DeviceStateError, match="unauthorized"):
        connect(other).shell(HELLO, CALL)
    assert other.signed_in == 0
