"""The rule about skips, run on small suites by a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

SUITE = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="no such tool")
def test_skipped(): pass

def test_skips_itself(): pytest.skip("no such file")

@pytest.mark.xfail(strict=True)
def test_expected_failure(): assert False
"""
SKIPPED_MODULE = 'import pytest\npytest.skip("no such wheel", allow_module_level=True)\n'


def _run_pytest(folder: Path, in_ci: bool) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HYCO_", "PYTEST_"))}
    environment["PYTHONPATH"] = str(REPOSITORY)
    if in_ci:
        environment["HYCO_CI"] = "1"
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "tests.no_skips", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def test_skips_are_skips_on_a_users_machine(suite: Path) -> None:
    run = _run_pytest(suite, in_ci=False)
    assert run.returncode == 0, run.stdout
    assert "1 passed, 2 skipped, 1 xfailed" in run.stdout


def test_skips_are_failures_in_ci(suite: Path) -> None:
    run = _run_pytest(suite, in_ci=True)
    assert run.returncode == 1, run.stdout
    # A skip mark acts before the test starts, which pytest counts as an error.
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in run.stdout
    assert "a skip is a failure in CI: Skipped: no such tool" in run.stdout
    assert "a skip is a failure in CI: Skipped: no such file" in run.stdout


def test_a_module_that_skips_itself_fails_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(SKIPPED_MODULE)
    run = _run_pytest(tmp_path, in_ci=True)
    assert run.returncode != 0, run.stdout
    assert "a skip is a failure in CI: Skipped: no such wheel" in run.stdout
