"""`hyco-npu runner build` from outside: options, JSON, exit codes, and a whole Android build with a stand-in NDK."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import device_runner.android_folder as android_folder
from hyco_npu.cli import app

from .aars import BUILD, Files, host_library

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON line of `runner build ARGUMENTS`."""
    done = CliRunner().invoke(app, ["runner", "build", *map(str, arguments), "--json"])
    return done.exit_code, json.loads(done.stdout.splitlines()[-1])


def android(files: Files, out: Path) -> list[str | Path]:
    inputs = files.inputs()
    assert inputs.qnn_runtime_aar is not None
    options = ["--android-ndk", inputs.ndk, "--ort-aar", inputs.ort_aar, "--qnn-aar", inputs.qnn_aar]
    return [*options, "--qnn-runtime-aar", inputs.qnn_runtime_aar, "--out", out]


@pytest.mark.native
@pytest.mark.cross
def test_an_android_build_configures_and_compiles_with_a_stand_in_for_the_ndk(tmp_path: Path) -> None:
    """cmake and a compiler run; the compiler is Debian's for aarch64 Linux, so this is no Android build."""
    files = Files.usual(tmp_path)
    code, result = run(*android(files, tmp_path / "out"))
    assert code == 0, result
    assert (result["abi"], result["providers"], result["htp_archs"]) == ("arm64-v8a", ["cpu", "htp"], ["v81"])
    assert (result["ort_version"], result["qnn_build"], result["warnings"]) == ("1.27.0", BUILD, [])
    assert result["android_run"] == "not run here"
    pieces = {piece["name"]: piece for piece in result["pieces"]}
    assert {name: (piece["machine"], piece["qnn_build"]) for name, piece in pieces.items()} == {
        "hyco_runner": ("AArch64", None),
        "libonnxruntime.so": ("AArch64", None),
        "libonnxruntime_providers_qnn.so": ("AArch64", None),
        "libQnnHtp.so": ("AArch64", BUILD),
        "libQnnSystem.so": ("AArch64", "260929181845"),
        "libQnnHtpV81Stub.so": ("AArch64", BUILD),
        "libQnnHtpV81Skel.so": ("Hexagon", BUILD),
    }
    cmake = tmp_path / "android-ndk-stand-in" / "build" / "cmake"
    assert (cmake / "asked.txt").read_text() == "arm64-v8a android-31 c++_static"
    compiled = (cmake / "compiled.txt").read_text()
    assert "-ffp-contract=off" in compiled
    assert "/include/nlohmann" not in compiled
    assert "-isystem" in compiled
    runner = tmp_path / "out" / "hyco_runner"
    machine = subprocess.run(["readelf", "-h", str(runner)], capture_output=True, text=True, check=True).stdout
    assert "AArch64" in machine
    said = subprocess.run(
        ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", str(runner)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert json.loads(said.stdout.splitlines()[-1]) == {"end": True, "exit": 2}


@pytest.mark.native
@pytest.mark.cross
def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path) -> None:
    arguments = android(Files.usual(tmp_path), tmp_path / "out")
    compiler = tmp_path / "android-ndk-stand-in" / "build" / "cmake" / "g++"
    compiler.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    code, result = run(*arguments)
    assert (code, result["exit_code"]) == (1, 1)
    assert "building the native runner failed" in result["error"]
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_piece_of_another_build_is_told_before_the_build(tmp_path: Path) -> None:
    files = Files.usual(tmp_path)
    older = {"libQnnHtp.so": host_library("v2.50.0.260828221209")}
    mixed = Files(tmp_path, files.ort, files.plugin, {**files.qnn, **older})
    code, result = run(*android(mixed, tmp_path / "out"))
    assert code == 1
    assert "libQnnHtp.so is of v2.50.0.260828221209" in result["error"]


def test_what_a_reader_of_the_screen_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(build_dir: Path, ndk: Path) -> Path:
        (build_dir / "hyco_runner").write_bytes(host_library())
        return build_dir / "hyco_runner"

    monkeypatch.setattr(android_folder, "build_android", build)
    monkeypatch.setenv("COLUMNS", "200")
    files = Files.usual(tmp_path)
    silent = Files(tmp_path, files.ort, files.plugin, {**files.qnn, "libQnnSystem.so": host_library()})
    arguments = ["runner", "build", *map(str, android(silent, tmp_path / "out"))]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "Runner for arm64-v8a, NPU v81" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "libQnnHtpV81Skel.so" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == [
        "libQnnHtpV81Skel.so",
        "Hexagon",
        BUILD,
        "qnn-runtime-2.51.0.aar: jni/arm64-v8a/libQnnHtpV81Skel.so",
    ]
    assert "on a phone: not run here" in done.stdout
    assert "warning: libQnnSystem.so carries no text of its QNN build" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "choose one: --host"),
        (["--host", "--android-ndk", "ndk"], "choose one: --host"),
        (["--host", "--qnn-aar", "x.aar"], "--qnn-aar is for a phone's runner"),
        (["--host", "--htp-arch", "v81"], "--htp-arch is for a phone's runner"),
        (["--host", "--bundle", "x"], "--bundle is for a phone's runner"),
        (["--android-ndk", "ndk", "--qnn-aar", "x.aar"], "needs --ort-aar FILE and --qnn-aar FILE"),
        (["--android-ndk", "ndk", "--ort-aar", "x.aar", "--qnn-aar", "x.aar"], "is not an Android NDK"),
    ],
)
def test_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, result = run(*arguments)
    assert (code, result["exit_code"]) == (2, 2)
    assert words in result["error"]
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for arguments in (["--host", "--out", tmp_path / "out"], android(Files.usual(tmp_path), tmp_path / "out")):
        code, result = run(*arguments)
        assert code == 2
        assert "--force" in result["error"]
