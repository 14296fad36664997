"""cmake, compiler and header for real, and with tools that are scripts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from device_runner.doctor.check import Status
from device_runner.doctor.toolchain import cmake, cpp_compiler, find_compiler, json_header, toolchain_checks


def write_tool(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.native
def test_this_machine() -> None:
    checks = {check.name: check for check in toolchain_checks()}
    assert [check.status for check in checks.values()] == [Status.OK] * 3, checks
    said = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"cmake version {checks['cmake'].found}\n")
    header = Path("/usr/include/nlohmann/detail/abi_macros.hpp").read_text()
    parts = [re.search(rf"NLOHMANN_JSON_VERSION_{part} (\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    assert checks["nlohmann json"].found == ".".join(part.group(1) for part in parts if part is not None)


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_compiler() is None
    by_name = {check.name: check for check in toolchain_checks()}
    assert by_name["cmake"].found == "not installed"
    assert by_name["c++ compiler"].found == "none of c++, g++, clang++ is on the PATH"
    for name in ("cmake", "c++ compiler"):
        assert by_name[name].status is Status.PROBLEM
        assert "apt-get install cmake g++ nlohmann-json3-dev" in (by_name[name].what_to_do or "")
    assert by_name["nlohmann json"].status is Status.NOT_CHECKED


@pytest.mark.parametrize(
    ("says", "status", "found"),
    [
        ("cmake version 3.22.1", Status.OK, "3.22.1"),
        ("cmake version 4.0.0-rc2", Status.OK, "4.0.0-rc2"),
        ("cmake version 3.16.3", Status.PROBLEM, "3.16.3, older than 3.22"),
        ("no idea", Status.PROBLEM, "`cmake --version` says 'no idea'"),
    ],
)
def test_cmake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, status: Status, found: str) -> None:
    write_tool(tmp_path, "cmake", f"echo '{says}'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert (cmake().status, cmake().found) == (status, found)


def test_a_compiler_that_is_too_old(tmp_path: Path) -> None:
    compiler = write_tool(tmp_path, "c++", "echo 'c++: error: unrecognized option -std=c++17' >&2; exit 1")
    check = cpp_compiler(compiler)
    assert check.status is Status.PROBLEM
    assert check.found == f"{compiler} does not compile C++17: c++: error: unrecognized option -std=c++17"


def test_no_header(tmp_path: Path) -> None:
    message = "fatal error: nlohmann/json.hpp: No such file or directory"
    compiler = write_tool(tmp_path, "c++", f"echo '{message}' >&2; exit 1")
    check = json_header(compiler)
    assert check.status is Status.PROBLEM
    assert message in check.found


def test_a_compiler_that_cannot_be_started(tmp_path: Path) -> None:
    check = cpp_compiler(str(tmp_path / "gone"))
    assert check.status is Status.PROBLEM
    assert "No such file" in check.found
