"""Qualcomm's compiler and simulator for real, and with parts that are broken on purpose."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from device_runner.doctor import compiler
from device_runner.doctor.check import Status, examine
from device_runner.doctor.compiler import (
    compile_and_run,
    compiler_checks,
    expected_values,
    judge_values,
    qnn_build,
    save_graph,
)
from export.engines.cpu import cpu_session

if TYPE_CHECKING:
    from pathlib import Path

    from device_runner.doctor.check import Check

BY_HAND = [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 6, 8, 10, 12, 14]


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_the_closed_form() -> None:
    assert expected_values().tolist() == BY_HAND


def test_the_graph_on_the_cpu(tmp_path: Path) -> None:
    """ONNX Runtime's own kernels give the closed form; the graph has two operations beside its conversions."""
    path = tmp_path / "graph.onnx"
    save_graph(path)
    operations = [node.op_type for node in onnx.load(str(path)).graph.node if "Linear" not in node.op_type]
    assert operations == ["MatMul", "Relu"]
    (codes,) = cpu_session(path).run(None, {"x": np.full((1, 1, 1, 32), 32768 + 256, np.uint16)})
    assert ((codes.ravel().astype(float) - 32768) / 1024).tolist() == BY_HAND


@pytest.mark.htp
def test_compiler_and_simulator_work() -> None:
    checks = by_name(compiler_checks())
    assert [check.status for check in checks.values()] == [Status.OK] * 3, checks
    build = checks["qnn build"].found.partition(" ")[0]
    assert build.startswith("v2.")
    assert build in checks["compiler"].found
    assert "two operations for sm8850" in checks["compiler"].found
    assert checks["simulator"].found == "16 values as by arithmetic"


def test_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "why_unavailable", lambda: "the package onnxruntime-qnn is not installed")
    for check in compiler_checks():
        assert (check.status, check.found) == (Status.NOT_CHECKED, "the package onnxruntime-qnn is not installed")


@pytest.mark.htp
def test_a_broken_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's process finds a package whose library is cut off; ONNX Runtime refuses it."""
    package = tmp_path / "onnxruntime_qnn"
    package.mkdir()
    (package / "libQnnHtp.so").write_bytes(b"\x7fELF")
    (package / "__init__.py").write_text(
        f"get_library_path = get_qnn_htp_path = lambda: {str(package / 'libQnnHtp.so')!r}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checks = by_name(compile_and_run())
    assert checks["compiler"].status is Status.PROBLEM
    assert "HTP compiler failed on doctor.qdq.onnx for sm8850" in checks["compiler"].found
    assert (checks["simulator"].status, checks["simulator"].found) == (
        Status.NOT_CHECKED,
        "there is no compiled graph to run",
    )


@pytest.mark.htp
def test_a_broken_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The binary is cut off between compiling and running."""
    compile_graph = compiler.compile_graph

    def cut(*arguments: Any) -> Any:
        made = compile_graph(*arguments)
        made.binary.write_bytes(made.binary.read_bytes()[:100])
        return made

    monkeypatch.setattr(compiler, "compile_graph", cut)
    checks = by_name(compile_and_run())
    assert checks["compiler"].status is Status.OK
    assert checks["simulator"].status is Status.PROBLEM
    assert "the simulator ended with exit code 1" in checks["simulator"].found
    assert "does not load as a graph for sm8850" in checks["simulator"].found


def test_wrong_values_are_a_problem() -> None:
    """What QNN 2.51 gives where the weights' zero point is left out: codes -8 to -1 are read as 8 to 15."""
    unsigned = np.array([16, 18, 20, 22, 24, 26, 28, 30, *BY_HAND[8:]], dtype=np.float64)
    check = examine("simulator", lambda: judge_values(unsigned))
    assert check.status is Status.PROBLEM
    assert check.found == "wrong values: column 7 is 30, by arithmetic 0"
    for values in (np.full(16, np.nan), np.zeros(3)):
        assert examine("simulator", lambda values=values: judge_values(values)).status is Status.PROBLEM  # type: ignore[misc]
    assert examine("simulator", lambda: judge_values(np.array(BY_HAND, np.float64))).status is Status.OK


class Wheel:
    """Stands for the package: a folder with libraries of our making."""

    __version__ = "2.7.0"

    def __init__(self, folder: Path, builds: dict[str, str]) -> None:
        self._folder = folder
        for name, build in builds.items():
            (folder / name).write_bytes(b"\0" + build.encode() + b"\0")

    def get_qnn_htp_path(self) -> str:
        return str(self._folder / "libQnnHtp.so")


BUILD = "v2.51.0.260929181845"
ONE_BUILD = {"libQnnHtp.so": BUILD, "libHtpPrepare.so": BUILD, "libQnnSystem.so": "260929181845"}


@pytest.mark.parametrize(
    ("builds", "status", "found"),
    [
        (ONE_BUILD, Status.OK, f"{BUILD} (onnxruntime-qnn 2.7.0)"),
        ({**ONE_BUILD, "libHtpPrepare.so": "v2.49.0.260601120000"}, Status.PROBLEM, "not of one build"),
        ({"libQnnHtp.so": BUILD, "libQnnSystem.so": BUILD}, Status.PROBLEM, "lacks libHtpPrepare.so"),
        (dict.fromkeys(ONE_BUILD, "nothing"), Status.PROBLEM, "do not carry their build"),
    ],
)
def test_build_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: dict[str, str], status: Status, found: str
) -> None:
    monkeypatch.setattr(compiler, "why_unavailable", lambda: None)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", Wheel(tmp_path, builds))
    check = qnn_build()
    assert check.status is status
    assert found in check.found
