"""A phone's folder out of made-up AARs: what is collected, and every reason to refuse. No compiler runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import device_runner.android_folder as android_folder
from device_runner.android_folder import build_android_runner
from device_runner.native_errors import NativeBuildError, PieceError
from device_runner.runner_folder import RunnerFolder
from export.errors import BundleError
from quant.errors import UsageError

from .aars import BUILD, ORT, PROVIDER, Files, host_library, plugin_files, qnn_files, write_aar, write_sdk
from .made_up_elf import AARCH64, X86_64, elf
from .native.recorded import Calls, Sizes, write_mtp

if TYPE_CHECKING:
    from pathlib import Path

QNN_PIECES = ["libQnnHtp.so", "libQnnSystem.so", "libQnnHtpV79Stub.so", "libQnnHtpV79Skel.so"]
QNN_PIECES += ["libQnnHtpV81Stub.so", "libQnnHtpV81Skel.so"]
OLDER = "v2.50.0.260828221209"
GLIBC = elf(AARCH64, needed=("libc.so.6",), texts=(BUILD,))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files.usual(tmp_path, "v79", "v81")


@pytest.fixture(autouse=True)
def _quick_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for cmake: a file that looks as if the NDK had linked it."""

    def build(build_dir: Path, ndk: Path) -> Path:
        (build_dir / "hyco_runner").write_bytes(elf(AARCH64, needed=("libc.so", "libdl.so")))
        return build_dir / "hyco_runner"

    monkeypatch.setattr(android_folder, "build_android", build)


def refused(files: Files, **changes: Any) -> str:
    """The message of the error, after which nothing is there."""
    out = files.folder / "out"
    with pytest.raises((PieceError, UsageError, BundleError, NativeBuildError)) as caught:
        build_android_runner(files.inputs(**changes), out)
    assert not out.exists()
    assert not list(files.folder.glob(".out*"))
    return str(caught.value)


def test_all_pieces_are_collected(files: Files) -> None:
    made = build_android_runner(files.inputs(), files.folder / "out")
    made.folder.verify()
    assert made.warnings == ()
    facts = made.folder.description
    assert (facts.abi, facts.providers, facts.htp_archs) == ("arm64-v8a", ("cpu", "htp"), ("v79", "v81"))
    assert (facts.ort_version, facts.qnn_build) == ("1.27.0", BUILD)
    assert {file.path: file.source for file in facts.files} == {
        "hyco_runner": "built from device_runner/native with the NDK android-ndk-stand-in",
        ORT: f"onnxruntime-android-1.27.0.aar: jni/arm64-v8a/{ORT}",
        PROVIDER: f"onnxruntime-android-qnn-2.7.0.aar: jni/arm64-v8a/{PROVIDER}",
        **{name: f"qnn-runtime-2.51.0.aar: jni/arm64-v8a/{name}" for name in QNN_PIECES},
    }
    for name, content in {**files.ort, **files.plugin, **files.qnn}.items():
        path = made.folder.folder / name
        assert not path.exists() or path.read_bytes() == content


def test_qnn_from_an_sdk(files: Files) -> None:
    sdk = write_sdk(files.folder / "2.51.0.260929", files.qnn)
    made = build_android_runner(files.inputs(qnn_runtime_aar=None, qairt_sdk=sdk), files.folder / "out")
    sources = {file.path: file.source for file in made.folder.description.files}
    assert sources["libQnnHtp.so"] == "2.51.0.260929: lib/aarch64-android/libQnnHtp.so"
    assert sources["libQnnHtpV81Skel.so"] == "2.51.0.260929: lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so"


def test_an_sdk_without_a_skeleton(files: Files) -> None:
    qnn = {name: content for name, content in files.qnn.items() if name != "libQnnHtpV81Skel.so"}
    sdk = write_sdk(files.folder / "2.51.0.260929", qnn)
    message = refused(files, qnn_runtime_aar=None, qairt_sdk=sdk, htp_archs=("v81",))
    assert "no 2.51.0.260929: lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so" in message


def test_qnn_inside_the_providers_aar(files: Files) -> None:
    together = replace(files, plugin={**files.plugin, **files.qnn})
    made = build_android_runner(together.inputs(qnn_runtime_aar=None), files.folder / "out")
    sources = {file.path: file.source for file in made.folder.description.files}
    assert sources["libQnnHtp.so"] == "onnxruntime-android-qnn-2.7.0.aar: jni/arm64-v8a/libQnnHtp.so"


def test_architectures_can_be_chosen(files: Files) -> None:
    made = build_android_runner(files.inputs(htp_archs=("v79",)), files.folder / "out")
    assert made.folder.description.htp_archs == ("v79",)
    assert not (made.folder.folder / "libQnnHtpV81Skel.so").exists()


def test_half_an_architecture_is_left_out_and_said(files: Files) -> None:
    qnn = {name: content for name, content in files.qnn.items() if name != "libQnnHtpV79Stub.so"}
    made = build_android_runner(replace(files, qnn=qnn).inputs(), files.folder / "out")
    assert made.folder.description.htp_archs == ("v81",)
    assert made.warnings == ("v79 was left out: there is a skeleton, but no libQnnHtpV79Stub.so",)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (ORT, f"no onnxruntime-android-1.27.0.aar: jni/arm64-v8a/{ORT}. It comes with com.microsoft.onnxruntime:"),
        (PROVIDER, "It comes with com.qualcomm.qti:onnxruntime-android-qnn (Maven Central; --qnn-aar)"),
        (
            "libQnnHtp.so",
            "com.qualcomm.qti:qnn-runtime (Maven Central; --qnn-runtime-aar) or the QAIRT SDK's lib/",
        ),
        ("libQnnSystem.so", "jni/arm64-v8a/libQnnSystem.so. It comes with com.qualcomm.qti:qnn-runtime"),
        ("libQnnHtpV81Stub.so", "the QAIRT SDK's lib/aarch64-android (--qairt-sdk)"),
        ("libQnnHtpV81Skel.so", "the QAIRT SDK's lib/hexagon-v81/unsigned (--qairt-sdk)"),
    ],
)
def test_a_missing_piece_is_named_with_its_source(files: Files, name: str, words: str) -> None:
    without = {part: {k: v for k, v in getattr(files, part).items() if k != name} for part in ("ort", "plugin", "qnn")}
    message = refused(replace(files, **without), htp_archs=("v81",))
    assert message.startswith(f"{name} is missing: ")
    assert words in message


def test_no_architecture_at_all(files: Files) -> None:
    assert "no stub and skeleton" in refused(replace(files, qnn=qnn_files()))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("libQnnHtp.so", elf(X86_64, texts=(BUILD,)), "is for x86-64 (64 bits), AArch64 (64 bits) is needed"),
        ("libQnnHtpV81Skel.so", host_library(BUILD), "is for AArch64 (64 bits), Hexagon (32 bits) is needed"),
        ("libQnnHtpV81Stub.so", elf(40, bits=32), "is for 32-bit ARM (32 bits), AArch64 (64 bits) is needed"),
        ("libQnnSystem.so", GLIBC, "for Linux with glibc, not for Android"),
        ("libQnnSystem.so", b"<html>", "libQnnSystem.so is not a library"),
        ("libQnnHtp.so", host_library(OLDER), f"libQnnHtp.so is of {OLDER}, libQnnSystem.so is of 260929181845"),
        ("libQnnSystem.so", host_library("260828221209"), "libQnnSystem.so is of 260828221209"),
        ("libQnnHtpV81Skel.so", elf(164, bits=32, texts=(OLDER,)), f"libQnnHtpV81Skel.so is of {OLDER}"),
        ("libQnnHtp.so", host_library(BUILD, OLDER), "several QNN builds"),
    ],
)
def test_a_wrong_qnn_library_is_refused(files: Files, name: str, content: bytes, words: str) -> None:
    assert words in refused(replace(files, qnn={**files.qnn, name: content}))


def test_a_library_without_a_build_is_said_to_be_unknown(files: Files) -> None:
    silent = replace(files, qnn={**files.qnn, "libQnnSystem.so": host_library()})
    made = build_android_runner(silent.inputs(), files.folder / "out")
    assert made.folder.description.qnn_build == BUILD
    (warning,) = made.warnings
    assert warning.startswith("libQnnSystem.so carries no text of its QNN build")


def test_what_a_library_needs_beside_the_phone_is_said(files: Files) -> None:
    needs = host_library("CreateEpFactories", needed=("libc.so", "libc++_shared.so", "libQnnSystem.so"))
    provider = needs.replace(b"CreateEp", b"\0CreateEp")
    made = build_android_runner(replace(files, plugin={PROVIDER: provider}).inputs(), files.folder / "out")
    assert made.warnings == (f"{PROVIDER} needs libc++_shared.so, which not every phone has",)


class TestWrongAars:
    def test_microsofts_qnn_aar_is_no_plugin(self, files: Files) -> None:
        built_in = {ORT: host_library("VERS_1.27.0", "QnnInterface_getProviders")}
        message = refused(replace(files, plugin=built_in))
        assert f"has its QNN provider inside {ORT}" in message
        assert "com.qualcomm.qti:onnxruntime-android-qnn" in message
        assert "com.microsoft.onnxruntime:onnxruntime-android (--ort-aar)" in refused(replace(files, ort=built_in))

    def test_a_provider_of_the_older_kind(self, files: Files) -> None:
        assert "no CreateEpFactories" in refused(replace(files, plugin={PROVIDER: host_library("GetProvider")}))

    def test_an_old_onnx_runtime(self, files: Files) -> None:
        old = {ORT: host_library("VERS_1.23.2")}
        assert "ONNX Runtime 1.23.2, the runner needs 1.24 or newer" in refused(replace(files, ort=old))
        silent = replace(files, ort={ORT: host_library()})
        made = build_android_runner(silent.inputs(), files.folder / "out")
        assert made.folder.description.ort_version is None
        assert made.warnings == (f"{ORT} does not say its version: whether the runner can use it is unknown",)

    def test_another_abi(self, files: Files) -> None:
        inputs = files.inputs()
        write_aar(inputs.qnn_aar, plugin_files(), abi="x86_64")
        with pytest.raises(PieceError, match="What was found there: nothing for arm64-v8a"):
            build_android_runner(inputs, files.folder / "out")

    @pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + bytes(40)])
    def test_no_aar_at_all(self, files: Files, content: bytes) -> None:
        inputs = files.inputs()
        inputs.ort_aar.write_bytes(content)
        with pytest.raises(PieceError, match=r"--ort-aar .* is no AAR, or is damaged"):
            build_android_runner(inputs, files.folder / "out")

    def test_a_damaged_member(self, files: Files) -> None:
        inputs = files.inputs()
        content = bytearray(inputs.ort_aar.read_bytes())
        at = content.index(b"jni/arm64-v8a/libonnxruntime.so") + 40
        content[at : at + 40] = bytes(40)
        inputs.ort_aar.write_bytes(content)
        with pytest.raises(PieceError, match="damaged"):
            build_android_runner(inputs, files.folder / "out")


def test_wrong_use(files: Files) -> None:
    folder = files.folder
    for changes, words in (
        ({"ndk": folder}, "is not an Android NDK"),
        ({"ort_aar": folder / "absent.aar"}, "--ort-aar .*no such file"),
        ({"qnn_runtime_aar": None, "qairt_sdk": folder / "absent"}, "is not a QAIRT SDK"),
        ({"qairt_sdk": folder}, "give one of them"),
        ({"htp_archs": ("81",)}, "write it as in v81"),
    ):
        with pytest.raises(UsageError, match=words):
            build_android_runner(files.inputs(**changes), folder / "out")


def test_a_runner_of_another_machine_is_a_failed_build(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(build_dir: Path, ndk: Path) -> Path:
        (build_dir / "hyco_runner").write_bytes(elf(X86_64))
        return build_dir / "hyco_runner"

    monkeypatch.setattr(android_folder, "build_android", build)
    assert "built a runner that a phone cannot start" in refused(files)


class TestBundles:
    @staticmethod
    def bundle(folder: Path, *targets: tuple[str, int, str, str]) -> Path:
        write_mtp(folder, Sizes(), Calls())
        listed = ", ".join(
            f'{{"target": "{name}", "soc_model": {model}, "htp_arch": "{arch}", "qnn_version": "{version}", '
            '"compiled": true, "simulated": false, "measured_on_device": "not measured"}'
            for name, model, arch, version in targets
        )
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"targets": []', f'"targets": [{listed}]'))
        return folder

    def test_a_bundle_that_fits(self, files: Files) -> None:
        bundle = self.bundle(files.folder / "mtp", ("sm8850", 87, "v81", "2.51.0"), ("sm8650", 57, "v75", "2.60.0"))
        made = build_android_runner(files.inputs(bundles=(bundle,)), files.folder / "out")
        assert made.warnings == ()

    def test_a_newer_compiler_than_the_runtime(self, files: Files) -> None:
        bundle = self.bundle(files.folder / "mtp", ("sm8850", 87, "v81", "2.52.0"))
        message = refused(files, bundles=(bundle,))
        assert "compiled by QNN 2.52.0, the runtime is QNN 2.51.0" in message

    def test_another_architecture(self, files: Files) -> None:
        bundle = self.bundle(files.folder / "mtp", ("sm8650", 57, "v75", "2.51.0"))
        message = refused(files, bundles=(bundle,))
        assert "compiled for sm8650 (v75), the runner's folder would have v79, v81: add --htp-arch v75" in message

    def test_what_cannot_be_compared(self, files: Files) -> None:
        plain = self.bundle(files.folder / "plain")
        made = build_android_runner(files.inputs(bundles=(plain,)), files.folder / "out")
        assert made.warnings == (f"bundle {plain} has no compiled graph: there is nothing to compare",)

    def test_libraries_without_a_build(self, files: Files) -> None:
        bundle = self.bundle(files.folder / "mtp", ("sm8850", 87, "v81", "2.51.0"))
        qnn = {name: content.replace(BUILD.encode(), b"v2") for name, content in files.qnn.items()}
        assert "carry no build text" in refused(replace(files, qnn=qnn), bundles=(bundle,))

    def test_no_bundle(self, files: Files) -> None:
        assert "no bundle at" in refused(files, bundles=(files.folder / "absent",))


def test_an_old_folder_stays_until_the_new_one_is_whole(files: Files) -> None:
    out = files.folder / "out"
    build_android_runner(files.inputs(), out)
    with pytest.raises(UsageError, match="--force"):
        build_android_runner(files.inputs(), out)
    broken = replace(files, qnn={**files.qnn, "libQnnHtp.so": host_library(OLDER)})
    with pytest.raises(PieceError):
        build_android_runner(broken.inputs(), out, force=True)
    RunnerFolder.load(out).verify()
    newer = replace(files, qnn=qnn_files("v81", build="v2.52.0.261030101010"))
    assert build_android_runner(newer.inputs(), out, force=True).folder.description.qnn_build == "v2.52.0.261030101010"
    assert not (out / "libQnnHtpV79Skel.so").exists()
