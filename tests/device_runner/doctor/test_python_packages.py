"""Python, pins and native libraries against hand-made metadata."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from device_runner.doctor.check import Status
from device_runner.doctor.python_packages import library, packages, python_checks, python_version

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 14), Status.PROBLEM), ((3, 11, 0), Status.OK), ((3, 13, 2), Status.OK), ((2, 7, 18), Status.PROBLEM)],
)
def test_python(version: tuple[int, ...], status: Status) -> None:
    check = python_version(version)
    assert check.status is status
    assert ".".join(map(str, version)) in check.found
    assert (check.what_to_do is None) is (status is Status.OK)


def write_distribution(folder: Path, name: str, version: str, *requirements: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requirements), ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of distributions, before all others on Python's path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


PINS = (
    "fitting==1.2.0",
    "ranged<3,>=2.4",
    "elsewhere==9.9; platform_system == 'Hurd'",
    "tool==4.0; extra == 'dev'",
)


def test_packages_as_pinned(site: Path) -> None:
    write_distribution(site, "product", "0.7", *PINS)
    write_distribution(site, "fitting", "1.2.0")
    write_distribution(site, "ranged", "2.9.1")
    check = packages("product")
    assert (check.status, check.found) == (Status.OK, "2 packages as pinned by product 0.7")


def test_packages_that_differ(site: Path) -> None:
    write_distribution(site, "product", "0.7", *PINS, "absent>=1")
    write_distribution(site, "fitting", "1.3.0")
    write_distribution(site, "ranged", "3.0")
    check = packages("product")
    assert check.status is Status.PROBLEM
    assert check.found == (
        "fitting is 1.3.0 (wanted ==1.2.0); ranged is 3.0 (wanted <3,>=2.4); absent is missing (wanted >=1)"
    )
    assert check.what_to_do == "pip install 'fitting==1.2.0' 'ranged<3,>=2.4' 'absent>=1'"


def test_a_product_that_is_not_installed() -> None:
    check = packages("no-such-product")
    assert (check.status, check.found) == (
        Status.PROBLEM,
        "no-such-product is not installed, so its pins are unknown",
    )


def test_what_this_environment_holds() -> None:
    """The reference is pip's own metadata."""
    checks = {check.name: check for check in python_checks()}
    assert [check.status for check in checks.values()] == [Status.OK] * 5
    for name in ("torch", "onnx", "onnxruntime"):
        assert checks[name].found.partition("+")[0] == metadata.version(name).partition("+")[0]


def test_a_library_that_does_not_load(site: Path) -> None:
    write_distribution(site, "halflib", "1.0")
    (site / "halflib.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    check = library("halflib")
    assert check.status is Status.PROBLEM
    assert check.found == "does not load: libgomp.so.1: cannot open shared object file"


def test_a_library_from_elsewhere(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(site, "twolib", "1.0")
    (site / "twolib.py").write_text("__version__ = '0.9+cpu'")
    check = library("twolib")
    assert check.status is Status.PROBLEM
    assert check.found == f"0.9+cpu loads from {site / 'twolib.py'}, 1.0 is installed"
    monkeypatch.delitem(sys.modules, "twolib")


def test_a_library_of_its_own_build(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(site, "cpulib", "1.0")
    (site / "cpulib.py").write_text("__version__ = '1.0+cpu'")
    assert library("cpulib").status is Status.OK
    monkeypatch.delitem(sys.modules, "cpulib")
