"""Disk and memory at, below and above what exports need."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING

import pytest

from device_runner.doctor.check import Status
from device_runner.doctor.resources import disk_space, memory, resource_checks

if TYPE_CHECKING:
    from pathlib import Path

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free", "status", "found", "large_is_named"),
    [
        (0.5e9, Status.PROBLEM, "0.5 GB available, less than the 1.0 GB for the embedded family in", False),
        (3e9, Status.OK, "3.0 GB available, enough for the embedded family in", True),
        (50e9, Status.OK, "50.0 GB available in", False),
    ],
)
def test_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, status: Status, found: str, large_is_named: bool
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage(0, 0, int(free)))
    check = disk_space(tmp_path)
    assert (check.status, check.found) == (status, f"{found} {tmp_path}")
    assert ("E2B" in (check.what_to_do or "")) is large_is_named


@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        ("MemTotal: 1 kB\nMemAvailable:    1000000 kB\n", Status.PROBLEM, "1.0 GB available, less than the 2.0 GB"),
        (
            "MemTotal: 1 kB\nMemAvailable:    4882813 kB\n",
            Status.OK,
            "5.0 GB available, enough for the",
        ),
        ("MemTotal: 1 kB\nMemAvailable:   15625000 kB\n", Status.OK, "16.0 GB available"),
        ("MemTotal: 1 kB\n", Status.NOT_CHECKED, "has no line MemAvailable"),
    ],
)
def test_memory(tmp_path: Path, text: str, status: Status, found: str) -> None:
    (tmp_path / "meminfo").write_text(text)
    check = memory(tmp_path / "meminfo")
    assert check.status is status
    assert found in check.found


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    check = disk_space(tmp_path / "gone")
    assert check.status is Status.PROBLEM
    assert "FileNotFoundError" in check.found
    assert memory(tmp_path / "gone").status is Status.NOT_CHECKED


def test_names() -> None:
    assert [check.name for check in resource_checks()] == ["disk, working folder", "disk, scratch folder", "memory"]
