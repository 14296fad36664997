"""On a user's machine a missing tool skips its tests; in CI (HYCO_CI set) every skip is a failure.

Kept apart from conftest.py, whose hooks these become, so that it can be tested without importing torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

IN_CI = bool(os.environ.get("HYCO_CI"))
"""The only place where the tests read the environment."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped test; an expected failure (xfail), which pytest reports as a skip too, stays one."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure in CI: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that skips itself as a whole (importorskip, allow_module_level)."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"a skip is a failure in CI: {_reason(report.longrepr)}"
    return report


def _reason(longrepr: object) -> object:
    """The text of a skip, which pytest keeps as (path, line, reason)."""
    return longrepr[2] if isinstance(longrepr, tuple) else longrepr
