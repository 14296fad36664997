"""What building the native runner for this machine needs: cmake, a C++17 compiler, nlohmann/json.hpp."""

from __future__ import annotations

import re
import shutil
import subprocess

from device_runner.doctor.check import Check, Finding, named, not_checked, ok, problem

NEEDED_CMAKE = (3, 22)
_INSTALL = "on Debian and Ubuntu: apt-get install cmake g++ nlohmann-json3-dev"
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 60
_PROGRAM = """
#include <optional>
#include <string_view>
#include <utility>
int main() {
  auto [first, second] = std::pair{std::optional<int>{1}, std::string_view{"c++17"}};
  return second.size() == 5 && first ? 0 : 1;
}
"""
_JSON = """
#include <nlohmann/json.hpp>
hyco NLOHMANN_JSON_VERSION_MAJOR NLOHMANN_JSON_VERSION_MINOR NLOHMANN_JSON_VERSION_PATCH
"""


def toolchain_checks() -> list[Check]:
    """All checks of this file."""
    compiler = find_compiler()
    return [cmake(), cpp_compiler(compiler), json_header(compiler)]


def find_compiler() -> str | None:
    """The compiler that is on the PATH."""
    return next((found for name in _COMPILERS if (found := shutil.which(name)) is not None), None)


@named("cmake")
def cmake() -> Finding:
    """The version that the native sources ask for."""
    binary = shutil.which("cmake")
    if binary is None:
        return problem("not installed", _INSTALL)
    said = _run([binary, "--version"]).stdout
    found = re.search(r"version (\d+)\.(\d+)(\S*)", said)
    if found is None:
        return problem(f"`cmake --version` says {said.strip()[:200]!r}", _INSTALL)
    version = f"{found.group(1)}.{found.group(2)}{found.group(3)}"
    if (int(found.group(1)), int(found.group(2))) < NEEDED_CMAKE:
        return problem(f"{version}, older than {NEEDED_CMAKE[0]}.{NEEDED_CMAKE[1]}", "install a newer cmake")
    return ok(version)


@named("c++ compiler")
def cpp_compiler(compiler: str | None) -> Finding:
    """It compiles a C++17 program."""
    if compiler is None:
        return problem(f"none of {', '.join(_COMPILERS)} is on the PATH", _INSTALL)
    done = _run([compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], _PROGRAM)
    if done.returncode != 0:
        return problem(f"{compiler} does not compile C++17: {_first_line(done.stderr)}", _INSTALL)
    return ok(_first_line(_run([compiler, "--version"]).stdout))


@named("nlohmann json")
def json_header(compiler: str | None) -> Finding:
    """The compiler finds the header."""
    if compiler is None:
        return not_checked("there is no C++ compiler to look for the header")
    done = _run([compiler, "-std=c++17", "-E", "-P", "-x", "c++", "-"], _JSON)
    if done.returncode != 0:
        return problem(f"{compiler} does not find nlohmann/json.hpp: {_first_line(done.stderr)}", _INSTALL)
    version = done.stdout.rstrip().rpartition("hyco ")[2]
    return ok(".".join(version.split()))


def _run(argv: list[str], source: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, input=source, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def _first_line(text: str) -> str:
    return (text.strip() or "it printed nothing").splitlines()[0]
