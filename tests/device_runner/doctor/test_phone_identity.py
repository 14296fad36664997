"""What the phone says it is, over the real adb."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from device_runner.devices import Identity
from device_runner.doctor import device as device_module
from device_runner.doctor.check import Status, examine_value
from device_runner.doctor.device import AskedOnce
from device_runner.doctor.phone_identity import abi, android_version, look_at_chip, look_at_identity
from device_runner.errors import CallTimeoutError, LinkLostError
from device_runner.transport import Command, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_runner.adb import AdbTransport
    from device_runner.runner_folder import RunnerFolder
    from tests.device_runner.phone import Phone

PHONE = Identity("SM_S948", "SM8850", "660", "16", "arm64-v8a", "samsung/e3q/e3q:16")


def changed(**changes: str | None) -> Identity:
    return replace(PHONE, **changes)


@pytest.mark.adb
def test_identity(asked: AskedOnce) -> None:
    check, identity = examine_value("identity", lambda: look_at_identity(asked))
    assert (check.status, check.found) == (Status.OK, "SM_S948, samsung/e3q/e3q:16/BP2A/1:user/release-keys")
    assert identity is not None
    assert (identity.soc_model, identity.abi, identity.android_version) == ("SM8850", "arm64-v8a", "16")


@pytest.mark.adb
def test_a_phone_that_tells_nothing(phone: Phone, asked: AskedOnce) -> None:
    phone.set_command("getprop", "#!/bin/sh\n")
    check, identity = examine_value("identity", lambda: look_at_identity(asked))
    assert check.status is Status.NOT_CHECKED
    assert identity is not None
    for later in (abi(identity, None), android_version(identity)):
        assert later.status is Status.NOT_CHECKED


@pytest.mark.adb
def test_a_silent_phone_is_asked_once(phone: Phone, asked: AskedOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    phone.faults.hang = True
    started = time.monotonic()
    with pytest.raises(CallTimeoutError):
        asked.shell(Command(("true",)), Timeout(0.5))
    check, identity = examine_value("identity", lambda: look_at_identity(asked))
    assert time.monotonic() - started < device_module.CALL.total_s / 2
    assert (check.status, identity) == (Status.NOT_CHECKED, None)
    assert check.found.startswith("not asked: an earlier call got no answer (`true` on ")
    assert len(phone.services) == 1


@pytest.mark.adb
def test_a_lost_phone_is_asked_once(phone: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    transport = connect(phone)
    asked = AskedOnce(transport.client, transport.serial)
    phone.faults.drop_shell_after = 0
    with pytest.raises(LinkLostError):
        asked.shell(Command(("echo", "x")), Timeout(10))
    phone.faults.drop_shell_after = None
    assert examine_value("identity", lambda: look_at_identity(asked))[0].status is Status.NOT_CHECKED


@pytest.mark.parametrize(
    ("said", "status"),
    [("arm64-v8a", Status.OK), ("armeabi-v7a", Status.PROBLEM), ("x86_64", Status.PROBLEM), (None, Status.NOT_CHECKED)],
)
def test_abi(said: str | None, status: Status) -> None:
    assert abi(changed(abi=said), None).status is status


def test_abi_of_the_runner(write_runner: Callable[..., RunnerFolder]) -> None:
    check = abi(PHONE, write_runner(abi="x86_64-linux"))
    assert check.status is Status.PROBLEM
    assert "the phone is arm64-v8a, the runner in" in check.found
    assert check.found.endswith("is for x86_64-linux")


def test_abi_of_a_runner_that_fits(write_runner: Callable[..., RunnerFolder]) -> None:
    assert abi(PHONE, write_runner()).status is Status.OK
    assert abi(None, None).status is Status.NOT_CHECKED


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("16", Status.OK),
        ("10", Status.OK),
        ("9", Status.PROBLEM),
        ("8.1.0", Status.PROBLEM),
        ("Baklava", Status.NOT_CHECKED),
        (None, Status.NOT_CHECKED),
    ],
)
def test_android_version(said: str | None, status: Status) -> None:
    assert android_version(changed(android_version=said)).status is status


@pytest.mark.parametrize(
    ("soc", "status", "target", "found"),
    [
        ("SM8850", Status.OK, "sm8850", "SM8850: Galaxy S26, soc_model 87, v81"),
        ("SM8650", Status.OK, "sm8650", "SM8650: Galaxy S24, soc_model 57, v75"),
        ("Tensor G5", Status.PROBLEM, None, "Tensor G5 is none of the chips"),
        (None, Status.NOT_CHECKED, None, "the phone does not tell ro.soc.model; the kernel's soc_id is 660"),
    ],
)
def test_chip(soc: str | None, status: Status, target: str | None, found: str) -> None:
    finding, known = look_at_chip(changed(soc_model=soc))
    assert finding.status is status
    assert (None if known is None else known.name) == target
    assert found in finding.found
    assert look_at_chip(None)[0].status is Status.NOT_CHECKED
