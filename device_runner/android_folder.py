"""The runner's folder for a phone: built with the NDK, its libraries collected from files that the user has.

All that can be checked without a phone is checked before the build, in a folder that is thrown away where a check
fails: each library is there, of the right machine and for Android, and those of QNN are of one build that is not older
than the bundles'. Nothing here has run on a phone.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.build import ANDROID_ABI, RUNNER, build_android, ndk_toolchain
from device_runner.native_errors import NativeBuildError, PieceError
from device_runner.piece_checks import check_bundles, check_ort, check_plugin, inspect, is_skeleton, require_android
from device_runner.piece_sources import SKELETON, Aar, PieceSource, QairtSdk
from device_runner.qnn_build import BuildStamp, one_build
from device_runner.runner_folder import (
    ORT,
    QNN_BACKEND,
    QNN_PROVIDER,
    RunnerFacts,
    RunnerFolder,
    write_runner_folder,
)
from device_runner.staged_folder import require_destination, staged_folder
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

QNN_SYSTEM = "libQnnSystem.so"
_ORT_AAR = "com.microsoft.onnxruntime:onnxruntime-android (Maven Central; --ort-aar)"
_PLUGIN_AAR = "com.qualcomm.qti:onnxruntime-android-qnn (Maven Central; --qnn-aar)"
_QNN_AAR = "com.qualcomm.qti:qnn-runtime (Maven Central; --qnn-runtime-aar)"


@dataclass(frozen=True)
class AndroidInputs:
    """What the user has. Of `qnn_runtime_aar` and `qairt_sdk` at most one; without both, `qnn_aar` must hold QNN too.

    `htp_archs`: "v81" and the like; empty: all that have a stub and a skeleton. `bundles`: folders to compare with.
    """

    ndk: Path
    ort_aar: Path
    qnn_aar: Path
    qnn_runtime_aar: Path | None = None
    qairt_sdk: Path | None = None
    htp_archs: tuple[str, ...] = ()
    bundles: tuple[Path, ...] = field(default=())


@dataclass(frozen=True)
class AndroidRunner:
    """The folder that was made, and what the user should know of it."""

    folder: RunnerFolder
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Wanted:
    """A library, the source that must hold it, and in words where else it comes from."""

    name: str
    source: PieceSource
    comes_with: str


def build_android_runner(inputs: AndroidInputs, out: Path, *, force: bool = False) -> AndroidRunner:
    """Collect and check the libraries, build the runner, and put the folder at `out`; `force` replaces one.

    Raises UsageError for paths that are not what their option asks for, PieceError for a library that is missing or
    wrong, BundleError where a bundle does not fit, NativeBuildError where the build fails.
    """
    require_destination(out, force=force)
    ndk_toolchain(inputs.ndk)
    wanted, archs = _wanted(inputs)
    with staged_folder(out, force=force) as folder:
        sources = {}
        for piece in wanted:
            piece.source.copy(piece.name, folder / piece.name)
            sources[piece.name] = piece.source.place(piece.name)
        version = check_ort(folder / ORT)
        check_plugin(folder / QNN_PROVIDER)
        build, remarks = _check_pieces([folder / name for name in sources])
        remarks += check_bundles(inputs.bundles, build, archs)
        if version is None:
            remarks.append(f"{ORT} does not say its version: whether the runner can use it is unknown")
        _build_into(folder, inputs.ndk)
        sources = {RUNNER: f"built from device_runner/native with the NDK {inputs.ndk.resolve().name}", **sources}
        facts = RunnerFacts(
            abi=ANDROID_ABI, ort_version=version, qnn_build=build, providers=("cpu", "htp"), htp_archs=archs
        )
        write_runner_folder(folder, sources, facts)
    return AndroidRunner(RunnerFolder.load(out), (*remarks, *_halves(wanted[-1].source)))


def _wanted(inputs: AndroidInputs) -> tuple[list[_Wanted], tuple[str, ...]]:
    """The libraries with their sources, all of which are there, and the architectures of the NPU."""
    ort, plugin = Aar(inputs.ort_aar, "--ort-aar"), Aar(inputs.qnn_aar, "--qnn-aar")
    qnn = _qnn_source(inputs, plugin)
    if QNN_PROVIDER not in plugin.holds() and ORT in plugin.holds():
        raise PieceError(
            f"--qnn-aar {inputs.qnn_aar} has its QNN provider inside {ORT} (com.microsoft.onnxruntime:"
            f"onnxruntime-android-qnn): that cannot be loaded as a plugin. Take {_PLUGIN_AAR}"
        )
    wanted = [_Wanted(ORT, ort, _ORT_AAR), _Wanted(QNN_PROVIDER, plugin, _PLUGIN_AAR)]
    wanted += [_Wanted(name, qnn, _in_sdk("aarch64-android")) for name in (QNN_BACKEND, QNN_SYSTEM)]
    # What lacks libQnnHtp.so is the wrong source: say that, not that it has no architectures.
    _require_there(wanted)
    archs = _architectures(inputs.htp_archs, qnn)
    for arch in archs:
        number = arch.removeprefix("v")
        wanted.append(_Wanted(f"libQnnHtpV{number}Stub.so", qnn, _in_sdk("aarch64-android")))
        wanted.append(_Wanted(f"libQnnHtpV{number}Skel.so", qnn, _in_sdk(f"hexagon-{arch}/unsigned")))
    _require_there(wanted)
    return wanted, archs


def _in_sdk(folder: str) -> str:
    return f"{_QNN_AAR} or the QAIRT SDK's lib/{folder} (--qairt-sdk)"


def _qnn_source(inputs: AndroidInputs, plugin: Aar) -> PieceSource:
    if inputs.qnn_runtime_aar is not None and inputs.qairt_sdk is not None:
        raise UsageError("--qnn-runtime-aar and --qairt-sdk both bring QNN's libraries: give one of them")
    if inputs.qairt_sdk is not None:
        return QairtSdk(inputs.qairt_sdk)
    return plugin if inputs.qnn_runtime_aar is None else Aar(inputs.qnn_runtime_aar, "--qnn-runtime-aar")


def _architectures(asked: Sequence[str], qnn: PieceSource) -> tuple[str, ...]:
    held = qnn.holds()
    there = {f"v{match.group(1)}" for name in held if (match := SKELETON.fullmatch(name))}
    paired = sorted((arch for arch in there if f"libQnnHtpV{arch[1:]}Stub.so" in held), key=lambda arch: int(arch[1:]))
    for arch in asked:
        if not re.fullmatch(r"v\d+", arch):
            raise UsageError(f"--htp-arch {arch}: write it as in v81")
    if not asked and not paired:
        place = qnn.place("libQnnHtpV81Skel.so")
        raise PieceError(
            f"no stub and skeleton of any Hexagon architecture there (for a Galaxy S26 the skeleton would be {place}): "
            f"they come with {_in_sdk('aarch64-android')}, skeletons in lib/hexagon-vNN/unsigned"
        )
    return tuple(dict.fromkeys(asked)) or tuple(paired)


def _require_there(wanted: Sequence[_Wanted]) -> None:
    for piece in wanted:
        if piece.name not in piece.source.holds():
            held = ", ".join(sorted(piece.source.holds())) or f"nothing for {ANDROID_ABI}"
            raise PieceError(
                f"{piece.name} is missing: there is no {piece.source.place(piece.name)}. "
                f"It comes with {piece.comes_with}. What was found there: {held}"
            )


def _halves(qnn: PieceSource) -> list[str]:
    """Architectures with a skeleton but no stub: nobody asked for them, but a reader may wonder."""
    held = qnn.holds()
    lonely = [match.group(1) for name in sorted(held) if (match := SKELETON.fullmatch(name))]
    lonely = [number for number in lonely if f"libQnnHtpV{number}Stub.so" not in held]
    return [f"v{number} was left out: there is a skeleton, but no libQnnHtpV{number}Stub.so" for number in lonely]


def _check_pieces(paths: Sequence[Path]) -> tuple[str | None, list[str]]:
    """The build of QNN's libraries, None where no text says it, and what could not be made sure."""
    for path in paths:
        require_android(path)
    pieces = [inspect(path) for path in paths]
    stamps = {piece.name: BuildStamp(piece.qnn_build) for piece in pieces if piece.name.startswith("libQnn")}
    build = one_build(stamps)
    remarks = [
        f"{name} carries no text of its QNN build: whether it is of the others' is unknown"
        for name, stamp in stamps.items()
        if stamp.text is None
    ]
    present = {piece.name for piece in pieces}
    for piece in pieces:
        foreign = [] if is_skeleton(piece.name) else piece.not_brought(present)
        if foreign:
            remarks.append(f"{piece.name} needs {', '.join(foreign)}, which not every phone has")
    return build, remarks


def _build_into(folder: Path, ndk: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hyco-runner-") as scratch:
        shutil.copyfile(build_android(Path(scratch), ndk), folder / RUNNER)
    try:
        require_android(folder / RUNNER, glibc_too=True)
    except PieceError as error:
        raise NativeBuildError(f"the NDK at {ndk} built a runner that a phone cannot start: {error}") from error
