"""Which phone is examined: `adb devices` as it prints, in the states of area 6 of the cases."""

from __future__ import annotations

import pytest

from device_runner.doctor.check import Status, examine_value
from device_runner.doctor.device_choice import choose, look_at_states
from device_runner.states import parse_devices

HEADER = "List of devices attached\n"
ONE, TWO = "R3CT10ABCDE\tdevice\n", "adb-R3CT1-x (2)._adb-tls-connect._tcp device\n"
LOCKED = "R3CT10LOCKED\tunauthorized\n"
NO_RULES = "R3CT10NORULE\tno permissions (missing udev rules? user is in the plugdev group); see [http://x]\n"


def chosen(listing: str, serial: str | None = None) -> tuple[Status, str, str | None]:
    check, found = examine_value("device", lambda: choose(parse_devices(HEADER + listing), serial))
    return check.status, check.found, found


def test_the_only_one() -> None:
    assert chosen(ONE) == (Status.OK, "R3CT10ABCDE, the only usable one", "R3CT10ABCDE")


def test_the_only_usable_one() -> None:
    assert chosen(LOCKED + TWO)[2] == "adb-R3CT1-x (2)._adb-tls-connect._tcp"


def test_several_are_listed() -> None:
    status, found, serial = chosen(ONE + TWO)
    assert (status, serial) == (Status.NOT_CHECKED, None)
    assert found == "2 are usable: R3CT10ABCDE, adb-R3CT1-x (2)._adb-tls-connect._tcp"


def test_the_one_asked_for() -> None:
    assert chosen(ONE + TWO, "R3CT10ABCDE") == (Status.OK, "R3CT10ABCDE", "R3CT10ABCDE")


@pytest.mark.parametrize("listing", ["", LOCKED])
def test_none(listing: str) -> None:
    assert chosen(listing) == (Status.NOT_CHECKED, "no usable device is connected", None)


def test_the_one_asked_for_is_locked_or_absent() -> None:
    assert chosen(ONE + LOCKED, "R3CT10LOCKED")[0] is Status.NOT_CHECKED
    status, found, serial = chosen(ONE, "OTHER")
    assert (status, serial) == (Status.PROBLEM, None)
    assert found == "no device has the serial 'OTHER'; connected: 'R3CT10ABCDE'"


@pytest.mark.parametrize(
    ("listing", "serial", "status", "advice"),
    [
        ("", None, Status.NOT_CHECKED, "switch on USB debugging"),
        (ONE, None, Status.OK, ""),
        (ONE + LOCKED, None, Status.PROBLEM, "accept the dialog"),
        (ONE + LOCKED, "R3CT10ABCDE", Status.OK, ""),
        (ONE + LOCKED, "R3CT10LOCKED", Status.PROBLEM, "accept the dialog"),
        (
            NO_RULES,
            None,
            Status.PROBLEM,
            "android-sdk-platform-tools-common), join the group plugdev",
        ),
        ("R3CT10ABCDE\toffline\n", None, Status.PROBLEM, "replug the cable"),
    ],
)
def test_states(listing: str, serial: str | None, status: Status, advice: str) -> None:
    finding = look_at_states(parse_devices(HEADER + listing), serial)
    assert finding.status is status
    assert advice in (finding.what_to_do or "")
    assert (finding.what_to_do is None) is (status is Status.OK)
