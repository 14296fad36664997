"""Builds the native runner (device_runner/native) for this machine with cmake.

Knows nothing of phones: for Android the same sources are configured with the NDK's toolchain file, see
docs/native-runner.md.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

from device_runner.native_errors import NativeBuildError

_LOG = logging.getLogger(__name__)

NATIVE_SOURCES = Path(__file__).resolve().parent / "native"
RUNNER, PROBE = "hyco_runner", "hyco_probe"
_SHOWN_LINES = 30
_JOBS = 2
_FEW_LARGE_UNITS = ("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0")
"""Most of the time goes into the standard headers; in one unit they are read once."""


def build_host(build_dir: Path, *, probe: bool = False, sanitize: bool = False) -> Path:
    """Configure and build in `build_dir`, which is made where it is absent; the runner's path.

    `probe`: the tests' executable too, beside the runner. `sanitize`: with address and undefined-behaviour sanitizers,
    not optimised. Raises NativeBuildError where cmake is missing or a step fails.
    """
    cmake = shutil.which("cmake")
    if cmake is None:
        raise NativeBuildError("cmake is not installed; on Debian and Ubuntu: apt-get install cmake nlohmann-json3-dev")
    ninja = ("-G", "Ninja") if shutil.which("ninja") else ()
    options = (f"-DHYCO_PROBE={_switch(probe)}", f"-DHYCO_SANITIZE={_switch(sanitize)}")
    build_dir.mkdir(parents=True, exist_ok=True)
    _run(cmake, "-S", str(NATIVE_SOURCES), "-B", str(build_dir), *ninja, *_FEW_LARGE_UNITS, *options)
    _run(cmake, "--build", str(build_dir), "--parallel", str(_JOBS))
    return build_dir / RUNNER


def _switch(on: bool) -> str:
    return "ON" if on else "OFF"


def _run(*command: str) -> None:
    _LOG.debug("running %s", " ".join(command))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        shown = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])
        raise NativeBuildError(
            f"building the native runner failed ({' '.join(command[:2])} ended with {done.returncode}); "
            f"it needs a C++17 compiler and nlohmann/json.hpp:\n{shown}"
        )
