"""Python and the packages that this project is pinned to (docs/decisions/0002-pins.md)."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from device_runner.doctor.check import Check, Finding, examine, named, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.requirements import Requirement

DISTRIBUTION = "hyco-npu"
NEEDED_PYTHON = (3, 11)
LIBRARIES = ("torch", "onnx", "onnxruntime")
"""Libraries with native code, whose import shows more than their version."""


def python_checks() -> list[Check]:
    """All checks of this file."""
    return [python_version(sys.version_info[:3]), packages(), *(library(name) for name in LIBRARIES)]


@named("python")
def python_version(version: tuple[int, ...]) -> Finding:
    """The interpreter that runs this."""
    shown = ".".join(map(str, version))
    if version[:2] < NEEDED_PYTHON:
        wanted = ".".join(map(str, NEEDED_PYTHON))
        return problem(
            f"Python {shown}, older than {wanted}", f"make a virtual environment with Python {wanted} or newer"
        )
    return ok(f"Python {shown}, {sys.executable}")


@named("packages")
def packages(distribution: str = DISTRIBUTION) -> Finding:
    """Installed versions against the requirements in the installed package's metadata; extras are not asked for."""
    from packaging.requirements import Requirement

    try:
        stated = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return problem(
            f"{distribution} is not installed, so its pins are unknown", "pip install -e . in the repository"
        )
    wanted = [Requirement(line) for line in stated]
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = [text for one in wanted if (text := _difference(one)) is not None]
    if wrong:
        names = " ".join(f"'{one.name}{one.specifier}'" for one in _unmet(wanted))
        return problem("; ".join(wrong), f"pip install {names}")
    return ok(f"{len(wanted)} packages as pinned by {distribution} {metadata.version(distribution)}")


def library(name: str) -> Check:
    """One library: it loads, and what loads is what is installed."""
    return examine(name, lambda: _library(name))


def _library(name: str) -> Finding:
    try:
        module: Any = importlib.import_module(name)
    except (ImportError, OSError) as error:
        return problem(f"does not load: {error}", f"pip install --force-reinstall --no-deps {name}")
    loaded, installed = str(module.__version__), metadata.version(name)
    # torch's own version carries a build behind a plus sign that its metadata may lack
    if loaded.partition("+")[0] != installed.partition("+")[0]:
        return problem(
            f"{loaded} loads from {module.__file__}, {installed} is installed",
            "another folder comes first on Python's path (PYTHONPATH, the working directory): remove it from there",
        )
    return ok(loaded)


def _unmet(wanted: Iterable[Requirement]) -> list[Requirement]:
    return [one for one in wanted if _difference(one) is not None]


def _difference(wanted: Requirement) -> str | None:
    """What is wrong with one requirement; None where it is met."""
    try:
        installed = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name} is missing (wanted {wanted.specifier})"
    if wanted.specifier.contains(installed, prereleases=True):
        return None
    return f"{wanted.name} is {installed} (wanted {wanted.specifier})"
