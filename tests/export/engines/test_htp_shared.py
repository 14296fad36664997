"""Several graphs in one binary: Qualcomm's compiler for real where the wheel exists, its refusals everywhere."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import TensorProto, helper

from export.engines import htp
from export.engines.htp import TARGETS, CompiledGraph, compile_graph, compile_shared
from export.errors import CompileError

from ..estimate.builders import WEIGHT_BYTES, save_qdq
from .test_htp import context_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SM8850 = TARGETS["sm8850"]
ROWS = (1, 32)


@pytest.fixture
def graphs(tmp_path: Path) -> dict[Path, Path]:
    """Two graphs that read the same weight, and where their contexts go."""
    for rows in ROWS:
        save_qdq(tmp_path / f"rows{rows}.onnx", rows)
    (tmp_path / "out").mkdir()
    return {tmp_path / f"rows{rows}.onnx": tmp_path / "out" / f"context{rows}.onnx" for rows in ROWS}


def outputs(graphs: dict[Path, Path]) -> list[str]:
    (folder,) = {context.parent for context in graphs.values()}
    return sorted(path.name for path in folder.iterdir())


def named_binary(context: Path) -> str:
    (node,) = onnx.load(str(context), load_external_data=False).graph.node
    assert node.op_type == "EPContext"
    (name,) = (attribute.s.decode() for attribute in node.attribute if attribute.name == "ep_cache_context")
    return name


@pytest.mark.htp
def test_both_graphs_read_one_binary_with_the_weight_once(graphs: dict[Path, Path], tmp_path: Path) -> None:
    both = compile_shared(graphs, SM8850)
    alone = [compile_graph(qdq, tmp_path / f"alone{index}.onnx", SM8850) for index, qdq in enumerate(graphs)]
    assert [one.context for one in both] == list(graphs.values())
    assert {one.binary for one in both} == {next(iter(graphs.values())).parent / "context1_qnn.bin"}
    assert outputs(graphs) == ["context1.onnx", "context1_qnn.bin", "context32.onnx"]
    assert {named_binary(one.context) for one in both} == {"context1_qnn.bin"}
    assert [(one.nodes_on_npu, one.nodes_off_npu) for one in both] == [(4, 0), (4, 0)]
    # A graph costs some bytes of its own; the weight that is not there twice is more.
    assert both[0].binary.stat().st_size < sum(one.binary.stat().st_size for one in alone) - WEIGHT_BYTES


@pytest.mark.htp
@pytest.mark.parametrize("bad", [0, 1])
def test_a_refused_node_is_named_and_nothing_is_left(graphs: dict[Path, Path], bad: int) -> None:
    path = list(graphs)[bad]
    model = onnx.load(str(path))
    model.graph.node.append(helper.make_node("Erf", ["xf"], ["erf"], name="float_erf"))
    model.graph.output.append(helper.make_tensor_value_info("erf", TensorProto.FLOAT, None))
    onnx.save(model, str(path))
    with pytest.raises(CompileError, match=r"failed on rows1\.onnx, rows32\.onnx for sm8850.*: Erf float_erf"):
        compile_shared(graphs, SM8850)
    assert outputs(graphs) == []


@pytest.mark.parametrize("existing", [0, 1])
def test_an_existing_context_is_kept(graphs: dict[Path, Path], monkeypatch: pytest.MonkeyPatch, existing: int) -> None:
    monkeypatch.setattr(htp, "why_unavailable", lambda: None)
    context = list(graphs.values())[existing]
    context.write_text("mine")
    with pytest.raises(CompileError, match=rf"cannot compile into .*{context.name}: it exists"):
        compile_shared(graphs, SM8850)
    assert outputs(graphs) == [context.name]
    assert context.read_text() == "mine"


def test_without_the_compiler_the_reason_is_given(graphs: dict[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(htp, "why_unavailable", lambda: "there is no wheel for this moon")
    with pytest.raises(CompileError, match="cannot compile for HTP: there is no wheel for this moon"):
        compile_shared(graphs, SM8850)


def worker(monkeypatch: pytest.MonkeyPatch, work: Callable[[dict[str, Any]], Iterable[str]]) -> list[dict[str, Any]]:
    """`work` in the compiler's place: what it gets is recorded, what it gives is the worker's standard output."""
    jobs: list[dict[str, Any]] = []

    def run(*_: object, **options: Any) -> subprocess.CompletedProcess[str]:
        jobs.append(json.loads(options["input"]))
        return subprocess.CompletedProcess([], 0, "\n".join(work(jobs[-1])), "")

    monkeypatch.setattr(htp, "why_unavailable", lambda: None)
    monkeypatch.setattr(htp.subprocess, "run", run)
    return jobs


@pytest.mark.parametrize("two_bit", [False, True])
def test_the_worker_is_asked_once_for_all_graphs(
    graphs: dict[Path, Path], monkeypatch: pytest.MonkeyPatch, two_bit: bool
) -> None:
    def compile_both(job: dict[str, Any]) -> list[str]:
        folder = next(iter(graphs.values())).parent
        (folder / "c_qnn.bin").write_bytes(b"both")
        for _, context in job["graphs"]:
            context_model(folder / context.rsplit("/", 1)[1], ["EPContext"])
        return ['{"compile_s": 2.5, "peak_rss_bytes": 7, "narrowed": ["w"]}']

    jobs = worker(monkeypatch, compile_both)
    found = compile_shared(graphs, SM8850, two_bit=two_bit)
    (job,) = jobs
    assert job["graphs"] == [[str(qdq.resolve()), str(context.resolve())] for qdq, context in graphs.items()]
    assert job["options"]["enable_htp_weight_sharing"] == "1"
    assert job["two_bit"] is two_bit
    binary = next(iter(graphs.values())).parent / "c_qnn.bin"
    assert found == [
        CompiledGraph(context, binary, 2.5, 7, "v2.1", 4, 0, frozenset({"w"})) for context in graphs.values()
    ]


def test_two_binaries_are_an_error(graphs: dict[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As without weight sharing: each context beside a binary of its own."""

    def compile_apart(job: dict[str, Any]) -> list[str]:
        for _, context in job["graphs"]:
            stem, folder = context.rsplit("/", 1)[1].removesuffix(".onnx"), next(iter(graphs.values())).parent
            node = helper.make_node(
                "EPContext", ["x"], ["y"], domain="com.microsoft",
                ep_cache_context=f"{stem}_qnn.bin", ep_sdk_version="v2.1",
            )  # fmt: skip
            onnx.save(helper.make_model(helper.make_graph([node], "g", [], [])), str(folder / f"{stem}.onnx"))
            (folder / f"{stem}_qnn.bin").write_bytes(b"one")
        return ['{"compile_s": 1.0, "peak_rss_bytes": 1, "narrowed": []}']

    worker(monkeypatch, compile_apart)
    with pytest.raises(
        CompileError, match=r"compiled into \['context1_qnn\.bin', 'context32_qnn\.bin'\], not into one"
    ):
        compile_shared(graphs, SM8850)
    assert outputs(graphs) == []


def test_a_compiler_that_dies_leaves_nothing(graphs: dict[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def die(job: dict[str, Any]) -> list[str]:
        first = next(iter(graphs.values()))
        context_model(first, ["EPContext"])
        first.with_name(f"{first.stem}_qnn.bin").write_bytes(b"half a binary")
        return ['{"error": "out of memory"}']

    worker(monkeypatch, die)
    with pytest.raises(CompileError, match=r"failed on rows1\.onnx, rows32\.onnx for sm8850 \(exit 0\): out of memory"):
        compile_shared(graphs, SM8850)
    assert outputs(graphs) == []
