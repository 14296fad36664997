"""A broken world is a finding, never an exception."""

from __future__ import annotations

import pytest

from device_runner.doctor.check import Check, Finding, Status, examine, examine_value, named, not_checked, ok, problem
from device_runner.doctor.errors import UnansweredError
from device_runner.errors import CallTimeoutError, DeviceError


def test_three_ways_to_end() -> None:
    assert examine("a", lambda: ok("1.0")) == Check("a", Status.OK, "1.0", None)
    assert examine("b", lambda: problem("gone", "get it")) == Check("b", Status.PROBLEM, "gone", "get it")
    assert examine("c", lambda: not_checked("no phone")) == Check("c", Status.NOT_CHECKED, "no phone", None)


@pytest.mark.parametrize(
    ("error", "status", "found", "says_what_to_do"),
    [
        (CallTimeoutError("no answer in 20 s: replug"), Status.PROBLEM, "no answer in 20 s: replug", False),
        (UnansweredError("not asked"), Status.NOT_CHECKED, "not asked", False),
        (
            PermissionError(13, "Permission denied"),
            Status.PROBLEM,
            "PermissionError: [Errno 13] Permission denied",
            True,
        ),
        (ZeroDivisionError("division by zero"), Status.PROBLEM, "ZeroDivisionError: division by zero", True),
    ],
)
def test_an_exception_is_a_result(error: Exception, status: Status, found: str, says_what_to_do: bool) -> None:
    @named("broken")
    def broken() -> Finding:
        raise error

    check = broken()
    assert (check.name, check.status, check.found) == ("broken", status, found)
    assert (check.what_to_do is not None) is says_what_to_do


def test_an_interrupt_is_none() -> None:
    def interrupted() -> Finding:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine("a", interrupted)


def test_a_value_for_later_checks() -> None:
    assert examine_value("a", lambda: (ok("7"), 7)) == (Check("a", Status.OK, "7", None), 7)

    def broken() -> tuple[Finding, int]:
        raise DeviceError("gone")

    check, value = examine_value("a", broken)
    assert (check.status, check.found, value) == (Status.PROBLEM, "gone", None)
