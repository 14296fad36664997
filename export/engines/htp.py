"""Qualcomm's HTP compiler and x86 simulator, as they come with the onnxruntime-qnn wheel.

A graph is compiled in a process of its own: the compiler may end a process without an exception, and its memory is
measured there. A node that would leave the NPU is an error naming it, never silent.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from export.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPILE_OPTIONS = {"htp_graph_finalization_optimization_mode": "3"}
"""The QNN provider's options of every compile, also of the one that the estimate is read from."""

_PROVIDER = "QNNExecutionProvider"
_COMPILE_TIMEOUT_S = 1800
# ONNX Runtime's exceptions have no base class of their own.
_ORT_ERRORS = (
    ort_errors.EPFail,
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NoSuchFile,
    ort_errors.RuntimeException,
)


@dataclass(frozen=True)
class Target:
    """A phone's chip: QNN's soc_model number and Hexagon architecture."""

    name: str
    soc_model: int
    htp_arch: int
    phones: str


TARGETS = {
    t.name: t
    for t in (
        Target("sm8850", 87, 81, "Galaxy S26"),
        Target("sm8750", 69, 79, "Galaxy S25"),
        Target("sm8650", 57, 75, "Galaxy S24"),
    )
}


@dataclass(frozen=True)
class CompiledGraph:
    """What the compiler made: the context model (small, names the binary) and the binary, with what it cost.

    `two_bit_weights` names the weights that it stores in 2 bits.
    """

    context: Path
    binary: Path
    compile_s: float
    peak_rss_bytes: int
    qnn_version: str
    nodes_on_npu: int
    nodes_off_npu: int
    two_bit_weights: frozenset[str] = frozenset()


def why_unavailable() -> str | None:
    """Why this host can neither compile nor simulate; None where it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the QNN wheel exists for x86-64 Linux only, this is {platform.machine()} {platform.system()}"
    if find_spec("onnxruntime_qnn") is None:
        return "the package onnxruntime-qnn is not installed"
    return None


def compile_graph(
    qdq: Path, context: Path, target: Target, options: dict[str, str] | None = None, *, two_bit: bool = False
) -> CompiledGraph:
    """Compile the QDQ model at `qdq` for `target` into `context` and a binary beside it.

    `options` are the QNN provider's, over COMPILE_OPTIONS. `two_bit` stores INT4 weights whose codes lie in -2..1 in
    2 bits (two_bit.py).

    Raises:
        CompileError: no compiler on this host, a `context` that exists, a node that HTP does not take, a crash or a
            timeout of the compiler. Nothing of the failed graph is left behind.
    """
    reason = why_unavailable()
    if reason:
        raise CompileError(f"cannot compile for HTP: {reason}")
    if context.exists():
        raise CompileError(f"cannot compile into {context}: it exists; remove it or choose another name")
    try:
        return _compile_all({qdq: context}, target, {**COMPILE_OPTIONS, **(options or {})}, two_bit)[0]
    except BaseException:
        _remove_output(context)
        raise


def compile_shared(graphs: Mapping[Path, Path], target: Target, *, two_bit: bool = False) -> list[CompiledGraph]:
    """Compile several QDQ models (path -> context) into one binary in which they share their weights.

    The binary stands beside the first context. It does not load on the simulator: verify every graph compiled alone
    first. Times and memory are those of all graphs together. Raises CompileError as `compile_graph`.
    """
    reason = why_unavailable()
    if reason:
        raise CompileError(f"cannot compile for HTP: {reason}")
    for context in graphs.values():
        if context.exists():
            raise CompileError(f"cannot compile into {context}: it exists; remove it or choose another name")
    try:
        compiled = _compile_all(graphs, target, {**COMPILE_OPTIONS, "enable_htp_weight_sharing": "1"}, two_bit)
        if len({one.binary for one in compiled}) != 1:
            raise CompileError(f"the graphs were compiled into {[one.binary.name for one in compiled]}, not into one")
    except BaseException:
        for context in graphs.values():
            _remove_output(context)
        raise
    return compiled


def _compile_all(
    graphs: Mapping[Path, Path], target: Target, options: dict[str, str], two_bit: bool
) -> list[CompiledGraph]:
    job = {
        "graphs": [[str(qdq.resolve()), str(context.resolve())] for qdq, context in graphs.items()],
        "soc_model": target.soc_model,
        "htp_arch": target.htp_arch,
        "options": options,
        "two_bit": two_bit,
    }
    names = ", ".join(qdq.name for qdq in graphs)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "export.engines.htp_worker"],
            # Python looks for modules here first; a folder `export` where the user works is not ours.
            cwd=Path(__file__).resolve().parents[2],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"the HTP compiler gave no result for {names} in {_COMPILE_TIMEOUT_S} s") from error
    report = _report(done.stdout)
    if done.returncode != 0 or "error" in report or not report:
        tail = report.get("error") or "\n".join((done.stderr.strip() or "no output").splitlines()[-8:])
        outside = [node for context in graphs.values() if context.is_file() for node in _nodes_off_npu(context)]
        named = f"; nodes that HTP does not take: {', '.join(outside)}" if outside else ""
        raise CompileError(f"HTP compiler failed on {names} for {target.name} (exit {done.returncode}): {tail}{named}")
    return [_inspect(qdq, context, report) for qdq, context in graphs.items()]


def _report(output: str) -> dict[str, Any]:
    """The worker's report: the last line that is a JSON object, for Qualcomm's library prints to stdout too."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                report: dict[str, Any] = json.loads(line)
            except json.JSONDecodeError:
                continue
            return report
    return {}


def _remove_output(context: Path) -> None:
    # The compiler writes both files before it finds that a node is left for the CPU.
    for path in (context, context.with_name(f"{context.stem}_qnn.bin")):
        path.unlink(missing_ok=True)


def _nodes_off_npu(context: Path) -> list[str]:
    model = onnx.load(str(context), load_external_data=False)
    return [f"{node.op_type} {node.name}" for node in model.graph.node if node.op_type != "EPContext"]


def _inspect(qdq: Path, context: Path, report: dict[str, Any]) -> CompiledGraph:
    model = onnx.load(str(context), load_external_data=False)
    inside = [node for node in model.graph.node if node.op_type == "EPContext"]
    outside = _nodes_off_npu(context)
    if outside or len(inside) != 1:
        raise CompileError(f"{len(inside)} NPU partitions, nodes off the NPU: {outside or 'none'}; want one and none")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in inside[0].attribute}
    binary = context.parent / attributes["ep_cache_context"].decode()
    if not binary.is_file():
        raise CompileError(f"the compiler names {binary.name} but did not write it")
    source = onnx.load(str(qdq), load_external_data=False)
    return CompiledGraph(
        context=context,
        binary=binary,
        compile_s=report["compile_s"],
        peak_rss_bytes=report["peak_rss_bytes"],
        qnn_version=attributes["ep_sdk_version"].decode(),
        nodes_on_npu=len(source.graph.node),
        nodes_off_npu=len(outside),
        two_bit_weights=frozenset(report["narrowed"]),
    )


def qnn_session(model: Path, soc_model: int, htp_arch: int, entries: dict[str, str], options: dict[str, str]) -> Any:
    """A session on the QNN provider alone; `entries` are session settings, `options` the provider's."""
    import onnxruntime_qnn

    session = ort.SessionOptions()
    session.log_severity_level = 3
    session.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in entries.items():
        session.add_session_config_entry(key, value)
    provider = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": str(soc_model),
        "htp_arch": str(htp_arch),
    }
    session.add_provider_for_devices([_device(onnxruntime_qnn.get_library_path())], provider | options)
    return ort.InferenceSession(str(model), sess_options=session)


def simulator_session(context: Path, target: Target) -> Any:
    """The compiled graph on Qualcomm's x86 simulator. Its speed says nothing about a phone's.

    Raises:
        CompileError: no simulator on this host, or a context that does not load: damaged, or compiled for another chip.
    """
    reason = why_unavailable()
    if reason:
        raise CompileError(f"cannot simulate HTP: {reason}")
    try:
        return qnn_session(context, target.soc_model, target.htp_arch, {}, {})
    except _ORT_ERRORS as error:
        first = str(error).strip().splitlines()[0]
        raise CompileError(f"{context} does not load as a graph for {target.name}: {first}") from error


def _device(library: str) -> Any:
    devices = [device for device in ort.get_ep_devices() if device.ep_name == _PROVIDER]
    if not devices:
        ort.register_execution_provider_library(_PROVIDER, library)
        devices = [device for device in ort.get_ep_devices() if device.ep_name == _PROVIDER]
    if not devices:
        raise CompileError(f"ONNX Runtime {ort.__version__} finds no QNN device in {Path(library).name}")
    return devices[0]
