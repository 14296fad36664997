"""Builds the native runner (device_runner/native) with cmake: for this machine, for aarch64 Linux, for Android.

Knows neither phones nor the libraries beside the runner: see host_folder.py and android_folder.py.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from device_runner.native_errors import NativeBuildError
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = logging.getLogger(__name__)

NATIVE_SOURCES = Path(__file__).resolve().parent / "native"
RUNNER, PROBE = "hyco_runner", "hyco_probe"
CROSS_TOOLCHAIN = NATIVE_SOURCES / "toolchains" / "aarch64-linux-gnu.cmake"
ANDROID_ABI: Literal["arm64-v8a"] = "arm64-v8a"
ANDROID_PLATFORM = "android-31"
_NDK_TOOLCHAIN = Path("build/cmake/android.toolchain.cmake")
_JSON_HEADER_ROOTS = (Path("/usr/include"), Path("/usr/local/include"))
_SHOWN_LINES = 30
_JOBS = 2
_FEW_LARGE_UNITS = ("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0")
"""Most of the time goes into the standard headers; in one unit they are read once."""
_OWN_CXX_LIBRARY = ("-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc",)
"""A runner that is pushed to another Linux takes the C++ library with it: that one's may be older."""


def build_host(build_dir: Path, *, probe: bool = False, sanitize: bool = False) -> Path:
    """Configure and build in `build_dir`, which is made where it is absent; the runner's path.

    `probe`: the tests' executable too, beside the runner. `sanitize`: with address and undefined-behaviour sanitizers,
    not optimised. Raises NativeBuildError where cmake is missing or a step fails.
    """
    shared = () if sanitize else _OWN_CXX_LIBRARY
    return _build(build_dir, (f"-DHYCO_PROBE={_switch(probe)}", f"-DHYCO_SANITIZE={_switch(sanitize)}", *shared))


def build_cross(build_dir: Path) -> Path:
    """Build for aarch64 Linux (glibc) with Debian's cross-compiler; the runner's path. Raises as `build_host`."""
    return _build(build_dir, (f"-DCMAKE_TOOLCHAIN_FILE={CROSS_TOOLCHAIN}", *_OWN_CXX_LIBRARY, *_json_option(build_dir)))


def build_android(build_dir: Path, ndk: Path) -> Path:
    """Build for Android (arm64-v8a, android-31, the C++ library linked in) with the NDK at `ndk`; the runner's path.

    Raises UsageError where `ndk` is not an NDK, NativeBuildError as `build_host`.
    """
    options = (
        f"-DCMAKE_TOOLCHAIN_FILE={ndk_toolchain(ndk)}",
        f"-DANDROID_ABI={ANDROID_ABI}",
        f"-DANDROID_PLATFORM={ANDROID_PLATFORM}",
        "-DANDROID_STL=c++_static",
    )
    return _build(build_dir, (*options, *_json_option(build_dir)))


def ndk_toolchain(ndk: Path) -> Path:
    """The NDK's toolchain file for cmake; raises UsageError where there is none."""
    toolchain = ndk.resolve() / _NDK_TOOLCHAIN
    if not toolchain.is_file():
        raise UsageError(
            f"--android-ndk {ndk} is not an Android NDK: it has no {_NDK_TOOLCHAIN}. Unpack the NDK (r25 or later, "
            "developer.android.com/ndk/downloads) and name its folder, the one that holds build/ and toolchains/"
        )
    return toolchain


def _json_option(build_dir: Path) -> Sequence[str]:
    """nlohmann/json alone, through a link: a cross-compiler must see nothing else of this machine's headers."""
    for root in _JSON_HEADER_ROOTS:
        if (root / "nlohmann" / "json.hpp").is_file():
            include = build_dir / "include"
            include.mkdir(parents=True, exist_ok=True)
            link = include / "nlohmann"
            link.unlink(missing_ok=True)
            link.symlink_to(root / "nlohmann")
            return (f"-DHYCO_JSON_INCLUDE={include.resolve()}",)
    shown = " and ".join(str(root) for root in _JSON_HEADER_ROOTS)
    raise NativeBuildError(f"nlohmann/json.hpp lies neither in {shown}; on Debian: apt-get install nlohmann-json3-dev")


def _build(build_dir: Path, options: Sequence[str]) -> Path:
    cmake = shutil.which("cmake")
    if cmake is None:
        raise NativeBuildError("cmake is not installed; on Debian and Ubuntu: apt-get install cmake nlohmann-json3-dev")
    ninja = ("-G", "Ninja") if shutil.which("ninja") else ()
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
