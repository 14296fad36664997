"""Qualcomm's compiler and simulator, run for real where the wheel exists; their refusals everywhere."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib import util
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.engines import htp
from export.engines.cpu import QuantizedGraph, cpu_session
from export.engines.htp import TARGETS, CompiledGraph, compile_graph, simulator_session
from export.errors import CompileError

from ..tiny import TinyHead, random_state

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Quantized

SM8850 = TARGETS["sm8850"]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize(("name", "soc_model", "arch"), [("sm8850", 87, 81), ("sm8750", 69, 79), ("sm8650", 57, 75)])
def test_targets(name: str, soc_model: int, arch: int) -> None:
    assert (TARGETS[name].soc_model, TARGETS[name].htp_arch) == (soc_model, arch)


@pytest.mark.htp
def test_whole_graph_is_on_the_npu(compiled: CompiledGraph, quantized: dict[int, Quantized]) -> None:
    assert compiled.nodes_off_npu == 0
    assert compiled.nodes_on_npu == len(onnx.load(str(quantized[4].path)).graph.node)
    assert compiled.qnn_version.startswith("v2.")
    assert compiled.compile_s > 0
    assert compiled.peak_rss_bytes > 50e6
    (node,) = onnx.load(str(compiled.context)).graph.node
    assert node.op_type == "EPContext"
    assert compiled.binary.stat().st_size > 10_000
    assert sorted(p.name for p in compiled.context.parent.iterdir()) == ["step.onnx", "step_qnn.bin"]


@pytest.mark.htp
@pytest.mark.parametrize("bits", [4, 8])
def test_simulator_agrees_with_the_cpu(
    tiny: TinyHead, quantized: dict[int, Quantized], tmp_path: Path, bits: int
) -> None:
    made = quantized[bits]
    done = compile_graph(made.path, tmp_path / "c.onnx", SM8850)
    cpu = QuantizedGraph(cpu_session(made.path), made.boundary)
    npu = QuantizedGraph(simulator_session(done.context, SM8850), made.boundary)
    expected: dict[str, list[np.ndarray]] = {tensor.name: [] for tensor in made.boundary.outputs}
    simulated: dict[str, list[np.ndarray]] = {name: [] for name in expected}
    for position in (3, 5, 9, 12, 14, 20, 30, 40):
        for step in made.chain.run(cpu, random_state(tiny.config, position, seed=position), steps=2):
            result = npu.run(step.feed)
            assert result.keys() == expected.keys()
            for name, array in result.items():
                expected[name].append(step.result[name])
                simulated[name].append(array)
    for name in expected:
        assert cosine(np.stack(simulated[name]), np.stack(expected[name])) >= 0.9999, name
        # HTP's 4-bit products are off by a share of the weight's step, which at 32 inputs is large: single steps of
        # this tiny random head reach 1.4e-4, against 4e-5 with 8 bits.
        worst = min(map(cosine, simulated[name], expected[name]))
        assert worst >= (0.9999 if bits == 8 else 0.9997), name


@pytest.mark.htp
@pytest.mark.parametrize("name", ["sm8750", "sm8650"])
def test_other_targets_compile(quantized: dict[int, Quantized], tmp_path: Path, name: str) -> None:
    assert compile_graph(quantized[4].path, tmp_path / "c.onnx", TARGETS[name]).nodes_off_npu == 0


def with_float_operator(path: Path) -> onnx.ModelProto:
    """An Erf that reads a dequantised input and hands floats out."""
    model = onnx.load(str(path))
    source = next(node for node in model.graph.node if node.op_type == "DequantizeLinear" and "hidden" in node.input)
    model.graph.node.append(helper.make_node("Erf", [source.output[0]], ["erf"], name="float_erf"))
    model.graph.output.append(helper.make_tensor_value_info("erf", TensorProto.FLOAT, None))
    return model


def with_groupwise_weight(path: Path) -> onnx.ModelProto:
    """Row 9: one weight dequantised in groups of 16 inputs instead of per output channel, with float activations."""
    model = onnx.load(str(path))
    model.graph.node.extend(
        [
            helper.make_node(
                "DequantizeLinear", ["grouped", "group_scales"], ["w32"], name="group_dq", axis=0, block_size=16
            ),
            helper.make_node("MatMul", ["x32", "w32"], ["y32"], name="group_matmul"),
        ]
    )
    codes = helper.make_tensor("grouped", TensorProto.INT4, [32, 4], [1] * 128)
    model.graph.initializer.extend([codes, numpy_helper.from_array(np.ones((2, 4), np.float32), "group_scales")])
    model.graph.input.append(helper.make_tensor_value_info("x32", TensorProto.FLOAT, [1, 32]))
    model.graph.output.append(helper.make_tensor_value_info("y32", TensorProto.FLOAT, [1, 4]))
    return model


@pytest.mark.htp
@pytest.mark.parametrize(
    ("change", "node"), [(with_float_operator, "float_erf"), (with_groupwise_weight, "group_")], ids=["float", "groups"]
)
def test_a_node_off_the_npu_is_named_and_nothing_is_left(
    quantized: dict[int, Quantized], tmp_path: Path, change: Any, node: str
) -> None:
    onnx.save(change(quantized[4].path), str(tmp_path / "bad.onnx"))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(CompileError, match=rf"bad\.onnx for sm8850.*nodes that HTP does not take: .*{node}"):
        compile_graph(tmp_path / "bad.onnx", out / "c.onnx", SM8850)
    assert list(out.iterdir()) == []


@pytest.mark.htp
def test_no_model_at_all(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(CompileError, match=r"HTP compiler failed on bad\.onnx"):
        compile_graph(tmp_path / "bad.onnx", tmp_path / "c.onnx", SM8850)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.onnx"]


@pytest.mark.htp
def test_an_existing_context_is_kept(quantized: dict[int, Quantized], tmp_path: Path) -> None:
    (tmp_path / "c.onnx").write_text("mine")
    with pytest.raises(CompileError, match=r"c\.onnx: it exists"):
        compile_graph(quantized[4].path, tmp_path / "c.onnx", SM8850)
    assert (tmp_path / "c.onnx").read_text() == "mine"


@pytest.mark.htp
def test_a_folder_named_export_in_the_working_directory(
    quantized: dict[int, Quantized], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's process must import our package, not the user's folder of the same name."""
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    assert compile_graph(quantized[4].path, tmp_path / "c.onnx", SM8850).nodes_off_npu == 0


@pytest.mark.htp
@pytest.mark.parametrize("damage", ["last_byte", "half", "empty", "absent", "other_chip"])
def test_a_context_that_does_not_load(compiled: CompiledGraph, tmp_path: Path, damage: str) -> None:
    for path in (compiled.context, compiled.binary):
        shutil.copyfile(path, tmp_path / path.name)
    binary = tmp_path / compiled.binary.name
    whole = binary.read_bytes()
    if damage == "absent":
        binary.unlink()
    elif damage != "other_chip":
        binary.write_bytes({"last_byte": whole[:-1], "half": whole[: len(whole) // 2], "empty": b""}[damage])
    target = TARGETS["sm8650"] if damage == "other_chip" else SM8850
    with pytest.raises(CompileError, match=rf"step\.onnx does not load as a graph for {target.name}: "):
        simulator_session(tmp_path / "step.onnx", target)


def test_without_the_compiler_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(htp, "why_unavailable", lambda: "there is no wheel for this moon")
    with pytest.raises(CompileError, match="cannot compile for HTP: there is no wheel for this moon"):
        compile_graph(tmp_path / "a.onnx", tmp_path / "c.onnx", SM8850)
    with pytest.raises(CompileError, match="cannot simulate HTP: there is no wheel for this moon"):
        simulator_session(tmp_path / "c.onnx", SM8850)


@pytest.mark.parametrize(
    ("system", "machine", "spec", "reason"),
    [
        ("Linux", "x86_64", object(), None),
        ("Linux", "aarch64", object(), "this is aarch64 Linux"),
        ("Darwin", "x86_64", object(), "this is x86_64 Darwin"),
        ("Linux", "x86_64", None, "onnxruntime-qnn is not installed"),
    ],
)
def test_why_unavailable(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, spec: object, reason: str | None
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(htp, "find_spec", lambda name: spec if name == "onnxruntime_qnn" else util.find_spec(name))
    found = htp.why_unavailable()
    assert found is None if reason is None else reason in (found or "")


def worker(monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str, stderr: str) -> None:
    done = subprocess.CompletedProcess([], returncode, stdout, stderr)
    monkeypatch.setattr(htp, "why_unavailable", lambda: None)
    monkeypatch.setattr(htp.subprocess, "run", lambda *_, **__: done)


@pytest.mark.parametrize(
    ("returncode", "stdout", "stderr", "message"),
    [
        (-11, "", "", r"exit -11\): no output"),
        (-6, "some text\n", "first\nterminate called", r"exit -6\): first\nterminate called"),
        (1, '{"error": "no such op"}\n# a library prints later\n', "", r"exit 1\): no such op"),
        (0, "{broken\n", "", r"exit 0\): no output"),
        (0, "[1]\n", "", r"exit 0\): no output"),
    ],
)
def test_a_compiler_that_dies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, returncode: int, stdout: str, stderr: str, message: str
) -> None:
    worker(monkeypatch, returncode, stdout, stderr)
    with pytest.raises(CompileError, match=message):
        compile_graph(tmp_path / "a.onnx", tmp_path / "c.onnx", SM8850)


def test_a_compiler_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(*_: object, **__: object) -> None:
        (tmp_path / "c_qnn.bin").write_bytes(b"half a binary")
        raise subprocess.TimeoutExpired("worker", 1800)

    monkeypatch.setattr(htp, "why_unavailable", lambda: None)
    monkeypatch.setattr(htp.subprocess, "run", hang)
    with pytest.raises(CompileError, match=r"no result for a\.onnx in 1800 s"):
        compile_graph(tmp_path / "a.onnx", tmp_path / "c.onnx", SM8850)
    assert list(tmp_path.iterdir()) == []


def context_model(path: Path, operators: list[str]) -> None:
    nodes = []
    for index, operator in enumerate(operators):
        attributes = {"ep_cache_context": "c_qnn.bin", "ep_sdk_version": "v2.1", "embed_mode": 0}
        domain = "com.microsoft" if operator == "EPContext" else ""
        nodes.append(
            helper.make_node(
                operator, [f"x{index}"], [f"x{index + 1}"], name=f"n{index}", domain=domain,
                **(attributes if operator == "EPContext" else {}),
            )
        )  # fmt: skip
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [])), str(path))


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (["EPContext", "Tanh"], r"1 NPU partitions, nodes off the NPU: \['Tanh n1'\]"),
        (["EPContext", "EPContext"], "2 NPU partitions, nodes off the NPU: none"),
        (["Tanh"], r"0 NPU partitions, nodes off the NPU: \['Tanh n0'\]"),
        (["EPContext"], r"names c_qnn\.bin but did not write it"),
    ],
)
def test_a_compiled_graph_that_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operators: list[str], message: str
) -> None:
    def write(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        context_model(tmp_path / "c.onnx", operators)
        return subprocess.CompletedProcess([], 0, '{"compile_s": 1.0, "peak_rss_bytes": 1}', "")

    monkeypatch.setattr(htp, "why_unavailable", lambda: None)
    monkeypatch.setattr(htp.subprocess, "run", write)
    with pytest.raises(CompileError, match=message):
        compile_graph(tmp_path / "a.onnx", tmp_path / "c.onnx", SM8850)
    assert list(tmp_path.iterdir()) == []
