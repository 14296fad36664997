"""Checks of the libraries that go to a phone: machine, system, kind of provider, versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.elf import AARCH64, HEXAGON, MACHINE_NAMES, read_elf
from device_runner.native_errors import PieceError
from device_runner.piece_sources import SKELETON
from device_runner.qnn_build import ort_version, read_stamp, version_of
from export.bundle.compatibility import RuntimeTarget, require_target
from export.bundle.reader import open_bundle
from export.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

OLDEST_ORT = (1, 24)
"""The oldest ONNX Runtime whose C interface the runner can use (ort_api.h), and that takes QNN as a plugin."""

# Libraries of the phone itself that programs may name: the NDK's, and Qualcomm's way to the NPU.
_OF_THE_PHONE = frozenset({"libc.so", "libm.so", "libdl.so", "liblog.so", "libandroid.so", "libz.so", "libcdsprpc.so"})


@dataclass(frozen=True)
class Piece:
    """A file of a runner's folder, as it is: machine in words, QNN's build text (None: it carries none), needs."""

    name: str
    machine: str
    qnn_build: str | None
    needed: tuple[str, ...]

    def not_brought(self, present: Collection[str]) -> list[str]:
        """What it needs that is neither `present` nor of the phone."""
        return [name for name in self.needed if name not in present and name not in _OF_THE_PHONE]


def inspect(path: Path) -> Piece:
    """What a file says of itself; raises PieceError where it is no ELF file."""
    facts = read_elf(path)
    return Piece(path.name, facts.machine_name, read_stamp(path).text, facts.needed)


def is_skeleton(name: str) -> bool:
    """Whether `name` is the part that runs on the NPU itself."""
    return SKELETON.fullmatch(name) is not None


def require_android(path: Path, *, glibc_too: bool = False) -> None:
    """Raise PieceError unless `path` is for 64-bit ARM (a skeleton: for Hexagon), and for Android, not for glibc.

    `glibc_too` leaves the last one out.
    """
    facts = read_elf(path)
    bits, machine = (32, HEXAGON) if is_skeleton(path.name) else (64, AARCH64)
    if (facts.bits, facts.machine) != (bits, machine):
        raise PieceError(
            f"{path.name} is for {facts.machine_name} ({facts.bits} bits), {MACHINE_NAMES[machine]} ({bits} bits) is "
            "needed: take it from the file for Android's arm64-v8a"
        )
    if not glibc_too and "libc.so.6" in facts.needed:
        raise PieceError(
            f"{path.name} is for Linux with glibc, not for Android: take it from an AAR or aarch64-android"
        )


def check_ort(path: Path) -> str | None:
    """Version of ONNX Runtime, None where it does not say it.

    Raises PieceError where it is too old, or has a QNN provider of its own, which stands in the plugin's way.
    """
    if b"QnnInterface_getProviders" in path.read_bytes():
        raise PieceError(
            f"{path.name} has a QNN provider inside (com.microsoft.onnxruntime:onnxruntime-android-qnn): the plugin "
            "cannot be loaded beside it. Take com.microsoft.onnxruntime:onnxruntime-android (--ort-aar)"
        )
    version = ort_version(path)
    if version is not None and tuple(map(int, version.split(".")))[:2] < OLDEST_ORT:
        oldest = ".".join(map(str, OLDEST_ORT))
        raise PieceError(f"{path.name} is ONNX Runtime {version}, the runner needs {oldest} or newer (--ort-aar)")
    return version


def check_plugin(path: Path) -> None:
    """Raise PieceError unless a provider has the entry point of a plugin."""
    if b"\0CreateEpFactories\0" not in path.read_bytes():
        raise PieceError(
            f"{path.name} is not a plugin provider (it has no CreateEpFactories): take "
            "com.qualcomm.qti:onnxruntime-android-qnn 2.3 or newer (--qnn-aar)"
        )


def check_bundles(folders: Iterable[Path], qnn_build: str | None, htp_archs: Collection[str]) -> list[str]:
    """Compare the bundles' compiled graphs with QNN's build and the architectures; warnings.

    Raises BundleError where none of a bundle's chips has an architecture of these, where its graphs were compiled by a
    newer QNN, and where the build is unknown, so that nothing can be said.
    """
    warnings = []
    for folder in folders:
        bundle = open_bundle(folder)
        compiled = [status for status in bundle.manifest.targets if status.compiled]
        if not compiled:
            warnings.append(f"bundle {folder} has no compiled graph: there is nothing to compare")
            continue
        fitting = [status for status in compiled if status.htp_arch in htp_archs]
        if not fitting:
            theirs = ", ".join(f"{status.target} ({status.htp_arch})" for status in compiled)
            raise BundleError(
                f"bundle {folder} is compiled for {theirs}, the runner's folder would have {', '.join(htp_archs)}: "
                f"add --htp-arch {compiled[0].htp_arch}"
            )
        if qnn_build is None:
            raise BundleError(
                f"QNN's libraries carry no build text, so they cannot be compared with bundle {folder}, compiled by "
                f"QNN {fitting[0].qnn_version}: take libraries that do, or leave --bundle out"
            )
        for status in fitting:
            version = version_of(qnn_build)
            require_target(bundle, RuntimeTarget(status.target, status.soc_model, status.htp_arch, version))
    return warnings
