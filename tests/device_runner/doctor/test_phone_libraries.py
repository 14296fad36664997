"""The phone's own QNN libraries against the pushed build, over the real adb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from device_runner.doctor.check import Status
from device_runner.doctor.phone_libraries import system_libraries

from .conftest import BUILD, OTHER_BUILD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.doctor.device import AskedOnce
    from device_runner.runner_folder import RunnerFolder
    from tests.device_runner.phone import Phone

# On the tests' phone only folders below /data/local/tmp lie in its root.
VENDOR, ODM = "/data/local/tmp/vendor/lib64", "/data/local/tmp/odm/lib64"
FOLDERS = (VENDOR, ODM)


def put(phone: Phone, remote: str, build: str) -> Path:
    path = phone.path(remote)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\x00\xff\n\x00" + build.encode() + b"_118054\x00\xfe\n" + bytes(range(256)) * 40)
    return path


@pytest.mark.adb
def test_none(phone: Phone, asked: AskedOnce, write_runner: Callable[..., RunnerFolder]) -> None:
    phone.path(VENDOR).mkdir(parents=True)
    put(phone, f"{VENDOR}/libcdsprpc.so", OTHER_BUILD)
    check = system_libraries(asked, write_runner(), FOLDERS)
    assert (check.status, check.found) == (Status.OK, f"none in {VENDOR}, {ODM}")


@pytest.mark.adb
def test_another_build(phone: Phone, asked: AskedOnce, write_runner: Callable[..., RunnerFolder]) -> None:
    put(phone, f"{VENDOR}/libQnnHtp.so", OTHER_BUILD)
    put(phone, f"{VENDOR}/libQnnHtpV81Stub.so", OTHER_BUILD)
    put(phone, f"{ODM}/libQnnSystem.so", "nothing")
    put(phone, f"{ODM}/libQnnHtp.so", BUILD)
    check = system_libraries(asked, write_runner(), FOLDERS)
    assert check.status is Status.PROBLEM
    assert check.found == (
        f"{OTHER_BUILD}: {root(phone, VENDOR)}/libQnnHtp.so, {root(phone, VENDOR)}/libQnnHtpV81Stub.so; "
        f"unknown: {root(phone, ODM)}/libQnnSystem.so; pushed: {BUILD}"
    )
    assert "LD_LIBRARY_PATH=. and ADSP_LIBRARY_PATH=." in (check.what_to_do or "")


@pytest.mark.adb
def test_the_pushed_build(phone: Phone, asked: AskedOnce, write_runner: Callable[..., RunnerFolder]) -> None:
    put(phone, f"{VENDOR}/libQnnHtp.so", BUILD)
    check = system_libraries(asked, write_runner(), FOLDERS)
    assert (check.status, check.found) == (Status.OK, f"1 of the pushed build {BUILD}")


@pytest.mark.adb
def test_nothing_to_compare_with(phone: Phone, asked: AskedOnce) -> None:
    put(phone, f"{VENDOR}/libQnnHtp.so", OTHER_BUILD)
    check = system_libraries(asked, None, FOLDERS)
    assert check.status is Status.NOT_CHECKED
    assert OTHER_BUILD in check.found


@pytest.mark.adb
def test_a_folder_that_may_not_be_read(
    plain_user: Phone, asked: AskedOnce, write_runner: Callable[..., RunnerFolder]
) -> None:
    put(plain_user, f"{VENDOR}/libQnnHtp.so", OTHER_BUILD)
    plain_user.path(VENDOR).chmod(0o300)
    try:
        check = system_libraries(asked, write_runner(), FOLDERS)
    finally:
        plain_user.path(VENDOR).chmod(0o700)
    assert (check.status, check.found) == (Status.NOT_CHECKED, f"none seen; not readable: {root(plain_user, VENDOR)}")


@pytest.mark.adb
def test_the_real_folders_are_absent_here(asked: AskedOnce) -> None:
    check = system_libraries(asked, None)
    assert check.status is Status.OK
    assert "/vendor/lib64" in check.found


def root(phone: Phone, remote: str) -> str:
    return f"{phone.root}{remote}"
