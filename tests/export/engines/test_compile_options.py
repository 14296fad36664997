"""Every compile asks for the same optimisation: of one graph, of several in one binary, and of the estimate's proxy."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from export.engines import htp
from export.engines.htp import TARGETS, compile_graph, compile_shared
from export.errors import CompileError
from export.estimate.proxy import compile_for_proxy

if TYPE_CHECKING:
    from pathlib import Path

MODE = "htp_graph_finalization_optimization_mode"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The provider options of each job that the compiler's process got; it refuses them all."""
    options: list[dict[str, str]] = []

    def refuse(*_: object, **job: Any) -> subprocess.CompletedProcess[str]:
        options.append(json.loads(job["input"])["options"])
        return subprocess.CompletedProcess([], 1, "", "")

    monkeypatch.setattr(htp, "why_unavailable", lambda: None)
    monkeypatch.setattr(htp.subprocess, "run", refuse)
    return options


def test_the_estimate_is_of_the_binary_that_is_shipped(tmp_path: Path, asked: list[dict[str, str]]) -> None:
    qdq, target = tmp_path / "a.onnx", TARGETS["sm8850"]
    for compile_it in (
        lambda: compile_graph(qdq, tmp_path / "c.onnx", target),
        lambda: compile_shared({qdq: tmp_path / "c.onnx", tmp_path / "b.onnx": tmp_path / "d.onnx"}, target),
        lambda: compile_for_proxy(qdq, tmp_path),
    ):
        with pytest.raises(CompileError):
            compile_it()
    assert [options[MODE] for options in asked] == ["3", "3", "3"]
    assert asked[1]["enable_htp_weight_sharing"] == "1"
    assert asked[2]["profiling_level"] == "detailed"


def test_an_experiment_may_ask_for_another(tmp_path: Path, asked: list[dict[str, str]]) -> None:
    with pytest.raises(CompileError):
        compile_graph(tmp_path / "a.onnx", tmp_path / "c.onnx", TARGETS["sm8850"], {MODE: "1"})
    assert asked == [{MODE: "1"}]
