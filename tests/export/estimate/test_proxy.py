"""Compiling for the proxy chip: what QNN is asked for, which QNN is refused, and a real compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from export.engines.htp import CompiledGraph
from export.errors import BundleError, CompileError
from export.estimate import proxy
from export.estimate.proxy import compile_for_proxy, require_estimator, require_qnn

from .builders import QNN_VERSION, REAL_CSV, save_qdq

if TYPE_CHECKING:
    from pathlib import Path


def fake_compiler(monkeypatch: pytest.MonkeyPatch, version: str) -> dict[str, Any]:
    """Replace the compiler; what it was asked for comes back."""
    asked: dict[str, Any] = {}

    def compile_graph(
        qdq: Path, context: Path, target: Any, options: dict[str, str], *, two_bit: bool
    ) -> CompiledGraph:
        asked.update(qdq=qdq, target=target, options=options, two_bit=two_bit)
        (context.parent / "profile.csv").write_text(REAL_CSV.read_text())
        binary = context.with_suffix(".bin")
        binary.write_bytes(b"12345")
        return CompiledGraph(context, binary, 1.0, 1, version, 1, 0)

    monkeypatch.setattr(proxy, "compile_graph", compile_graph)
    return asked


def test_what_the_compiler_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_compiler(monkeypatch, QNN_VERSION)
    made = compile_for_proxy(tmp_path / "a.onnx", tmp_path)
    assert not asked["two_bit"]
    assert (asked["target"].soc_model, asked["target"].htp_arch) == (72, 81)
    csv = str(tmp_path / "profile.csv")
    assert asked["options"] == {"vtcm_mb": "8", "profiling_level": "detailed", "profiling_file_path": csv}
    assert (made.profile.us, made.binary_bytes, made.qnn_version) == (2875, 5, QNN_VERSION)


def test_options_of_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_compiler(monkeypatch, QNN_VERSION)
    options = {"vtcm_mb": "4", "htp_graph_finalization_optimization_mode": "3"}
    compile_for_proxy(tmp_path / "a.onnx", tmp_path, options, two_bit=True)
    assert asked["two_bit"]
    assert asked["options"]["vtcm_mb"] == "4"
    assert asked["options"]["htp_graph_finalization_optimization_mode"] == "3"
    assert asked["options"]["profiling_level"] == "detailed"


@pytest.mark.parametrize("version", ["v2.49.0.260101000000", "2.50.9", "1.99.0"])
def test_an_older_qnn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    fake_compiler(monkeypatch, version)
    with pytest.raises(CompileError, match=rf"cannot estimate with QNN {version}: before 2\.51 .* install"):
        compile_for_proxy(tmp_path / "a.onnx", tmp_path)


@pytest.mark.parametrize("version", ["2.51", "v2.51.0.260929181845", "2.100.0", "3.0.0"])
def test_newer_ones_are_taken(version: str) -> None:
    require_qnn(version)


def test_a_version_that_is_none() -> None:
    with pytest.raises(BundleError, match="QNN version 'unknown' cannot be read"):
        require_qnn("unknown")


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "why_unavailable", lambda: "there is no wheel for this moon")
    with pytest.raises(CompileError, match=r"cannot estimate: .* there is no wheel for this moon"):
        require_estimator()


@pytest.mark.htp
def test_the_real_compiler(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    save_qdq(tmp_path / "tiny.onnx", 8)
    made = compile_for_proxy(tmp_path / "tiny.onnx", scratch)
    profile = made.profile
    assert 0 < profile.us_low <= profile.us <= profile.us_high
    assert 0 < profile.cycles_low <= profile.cycles <= profile.cycles_high
    assert profile.missing_costs == 0
    # Every input byte is filled once at least: 8 rows of 512 codes of 2 bytes.
    assert profile.input_fill_bytes >= 8 * 512 * 2
    assert made.binary_bytes == (scratch / "proxy_qnn.bin").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "tiny.onnx"]
    require_qnn(made.qnn_version)
