"""Made-up AARs, QAIRT SDK and NDK: the real ones' layout, small files of the right kind in them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_runner.android_folder import AndroidInputs

from .made_up_elf import AARCH64, HEXAGON, elf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BUILD = "v2.51.0.260929181845"
ORT, PROVIDER = "libonnxruntime.so", "libonnxruntime_providers_qnn.so"
SYSTEM_LIBRARIES = ("libc.so", "libm.so", "libdl.so", "liblog.so")


def host_library(*texts: str, needed: tuple[str, ...] = SYSTEM_LIBRARIES) -> bytes:
    return elf(AARCH64, needed=needed, texts=texts)


def skeleton(*texts: str) -> bytes:
    return elf(HEXAGON, bits=32, needed=("libc++.so.1", "libc++abi.so.1"), texts=texts)


def ort_files(version: str = "1.27.0") -> dict[str, bytes]:
    return {ORT: host_library("OrtGetApiBase", f"VERS_{version}"), "libonnxruntime4j_jni.so": host_library()}


def plugin_files() -> dict[str, bytes]:
    return {PROVIDER: host_library("", "CreateEpFactories")}


def qnn_files(*archs: str, build: str = BUILD) -> dict[str, bytes]:
    """As the qnn-runtime AAR: libQnnSystem.so states the build's number alone."""
    number = build.rpartition(".")[2]
    files = {"libQnnHtp.so": host_library(build), "libQnnSystem.so": host_library("51", number)}
    files["libQnnHtpPrepare.so"] = host_library(build, f"hexnn_ver_{build}")
    for arch in archs:
        stub = host_library(build, needed=(*SYSTEM_LIBRARIES, "libcdsprpc.so"))
        files |= {f"libQnnHtpV{arch[1:]}Stub.so": stub, f"libQnnHtpV{arch[1:]}Skel.so": skeleton(build)}
        files[f"libQnnHtpV{arch[1:]}CalculatorStub.so"] = host_library(build)
    return files


def write_aar(path: Path, files: Mapping[str, bytes], abi: str = "arm64-v8a") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("AndroidManifest.xml", "<manifest/>")
        archive.writestr("classes.jar", b"")
        for name, content in files.items():
            archive.writestr(f"jni/{abi}/{name}", content)
    return path


def write_sdk(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        inner = f"hexagon-v{name[10:12]}/unsigned" if name.endswith("Skel.so") else "aarch64-android"
        path = folder / "lib" / inner / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


STAND_IN_TOOLCHAIN = """\
# Stands in for the NDK's file in a test: it compiles for aarch64 Linux, and notes down what was asked for.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/g++)
if(ANDROID_ABI)
  file(WRITE ${CMAKE_CURRENT_LIST_DIR}/asked.txt "${ANDROID_ABI} ${ANDROID_PLATFORM} ${ANDROID_STL}")
endif()
"""
STAND_IN_COMPILER = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/compiled.txt"
exec aarch64-linux-gnu-g++ "$@" -O0
"""


def write_stand_in_ndk(folder: Path) -> Path:
    """NOT an NDK: a folder that looks like one to cmake, with Debian's aarch64 compiler behind it."""
    cmake = folder / "build" / "cmake"
    cmake.mkdir(parents=True)
    (cmake / "android.toolchain.cmake").write_text(STAND_IN_TOOLCHAIN)
    (cmake / "g++").write_text(STAND_IN_COMPILER)
    (cmake / "g++").chmod(0o755)
    return folder


@dataclass(frozen=True)
class Files:
    """What a user has: the three AARs' content and the folder where they are written."""

    folder: Path
    ort: Mapping[str, bytes]
    plugin: Mapping[str, bytes]
    qnn: Mapping[str, bytes]

    @classmethod
    def usual(cls, folder: Path, *archs: str) -> Files:
        return cls(folder, ort_files(), plugin_files(), qnn_files(*(archs or ("v81",))))

    def inputs(self, **changes: object) -> AndroidInputs:
        """Written as AARs, beside a stand-in for the NDK."""
        ndk = self.folder / "android-ndk-stand-in"
        inputs = AndroidInputs(
            ndk=ndk if ndk.exists() else write_stand_in_ndk(ndk),
            ort_aar=write_aar(self.folder / "onnxruntime-android-1.27.0.aar", self.ort),
            qnn_aar=write_aar(self.folder / "onnxruntime-android-qnn-2.7.0.aar", self.plugin),
            qnn_runtime_aar=write_aar(self.folder / "qnn-runtime-2.51.0.aar", self.qnn),
        )
        return replace(inputs, **changes)  # type: ignore[arg-type]
