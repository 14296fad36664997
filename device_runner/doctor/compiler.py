"""Qualcomm's compiler and x86 simulator, by using them: a graph of two operations whose values are known.

    y = relu(x @ w),  x[k] = a,  w[k, n] = b (n - 8)    =>    y[n] = max(0, a b K (n - 8)),  K = 32, n = 0..15

in the form of the product's graphs: uint16 activations, INT4 codes with one scale for each output column and a zero
point that is written out. All codes from -8 to 7 are used, so codes that are read as unsigned are noticed.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from device_runner.doctor.check import Check, Finding, examine, examine_value, named, not_checked, ok, problem
from device_runner.errors import DeviceError
from device_runner.qnn_build import one_build, read_stamp
from device_runner.transport import excerpt
from export.engines.htp import TARGETS, CompiledGraph, compile_graph, why_unavailable

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET = TARGETS["sm8850"]
ROWS_IN, COLUMNS = 32, 16
ACTIVATION_SCALE, ZERO_POINT, WEIGHT_SCALE = 2.0**-10, 32768, 0.25
INPUT_VALUE = 0.25
TOLERANCE = 2 * ACTIVATION_SCALE
_LIBRARIES = ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSystem.so")
_SIMULATOR_TIMEOUT_S = 120
_REINSTALL = "pip install --force-reinstall --no-deps onnxruntime-qnn at the pinned version"


def compiler_checks() -> list[Check]:
    """All checks of this file."""
    return [qnn_build(), *compile_and_run()]


def compile_and_run() -> list[Check]:
    """Compile the module's graph for TARGET in a scratch folder, and run it."""
    with tempfile.TemporaryDirectory(prefix="hyco-doctor-") as scratch:
        compiled, graph = examine_value("compiler", lambda: _compile(Path(scratch)))
        simulated = examine("simulator", lambda: _simulate(graph))
    return [compiled, simulated]


@named("qnn build")
def qnn_build() -> Finding:
    """The build of the installed wheel's libraries, which must be one."""
    reason = why_unavailable()
    if reason is not None:
        return not_checked(reason)
    module: Any = importlib.import_module("onnxruntime_qnn")
    folder = Path(module.get_qnn_htp_path()).parent
    missing = [name for name in _LIBRARIES if not (folder / name).is_file()]
    if missing:
        return problem(f"{folder} lacks {', '.join(missing)}", _REINSTALL)
    build = one_build({name: read_stamp(folder / name) for name in _LIBRARIES})
    if build is None:
        return problem(f"the libraries in {folder} do not carry their build", _REINSTALL)
    return ok(f"{build} (onnxruntime-qnn {module.__version__})")


def save_graph(path: Path) -> None:
    """Write the module's graph: two operations, each with its quantised neighbours."""
    codes = np.tile(np.arange(COLUMNS) - 8, (ROWS_IN, 1))
    constants = [
        helper.make_tensor("w", TensorProto.INT4, [ROWS_IN, COLUMNS], codes.ravel().tolist()),
        helper.make_tensor("w_zero", TensorProto.INT4, [COLUMNS], [0] * COLUMNS),
        numpy_helper.from_array(np.full(COLUMNS, WEIGHT_SCALE, np.float32), "w_scale"),
        numpy_helper.from_array(np.array(ACTIVATION_SCALE, np.float32), "scale"),
        numpy_helper.from_array(np.array(ZERO_POINT, np.uint16), "zero"),
    ]
    activation = ["scale", "zero"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", *activation], ["xf"], name="dq_x"),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], name="dq_w", axis=1),
        helper.make_node("MatMul", ["xf", "wf"], ["pf"], name="product"),
        helper.make_node("QuantizeLinear", ["pf", *activation], ["p"], name="q_p"),
        helper.make_node("DequantizeLinear", ["p", *activation], ["pd"], name="dq_p"),
        helper.make_node("Relu", ["pd"], ["yf"], name="rectifier"),
        helper.make_node("QuantizeLinear", ["yf", *activation], ["y"], name="q_y"),
    ]
    graph = helper.make_graph(
        nodes,
        "doctor",
        [helper.make_tensor_value_info("x", TensorProto.UINT16, [1, 1, 1, ROWS_IN])],
        [helper.make_tensor_value_info("y", TensorProto.UINT16, [1, 1, 1, COLUMNS])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    model.ir_version = 11
    onnx.save_model(model, str(path))


def expected_values() -> NDArray[np.float64]:
    """y by the closed form of the module's docstring: [COLUMNS]."""
    product: NDArray[np.float64] = INPUT_VALUE * WEIGHT_SCALE * ROWS_IN * (np.arange(COLUMNS, dtype=np.float64) - 8)
    return np.maximum(0.0, product)


def _compile(scratch: Path) -> tuple[Finding, CompiledGraph | None]:
    reason = why_unavailable()
    if reason is not None:
        return not_checked(reason), None
    save_graph(scratch / "doctor.qdq.onnx")
    made = compile_graph(scratch / "doctor.qdq.onnx", scratch / "doctor.onnx", TARGET)
    size = made.binary.stat().st_size
    return ok(f"two operations for {TARGET.name} in {made.compile_s:.1f} s, {size:,} bytes, {made.qnn_version}"), made


def _simulate(graph: CompiledGraph | None) -> Finding:
    if graph is None:
        return why_not_simulated()
    # in a process of its own: Qualcomm's library may end a process without an exception, and prints to stdout
    done = subprocess.run(
        [sys.executable, "-m", "device_runner.doctor.simulate", str(graph.context)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=_SIMULATOR_TIMEOUT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode != 0 or not lines:
        raise DeviceError(f"the simulator ended with exit code {done.returncode}: {excerpt(done.stderr, done.stdout)}")
    return judge_values(np.array(json.loads(lines[-1]), dtype=np.float64))


def why_not_simulated() -> Finding:
    """The simulator's result where there is no compiled graph."""
    return not_checked(why_unavailable() or "there is no compiled graph to run")


def judge_values(values: NDArray[np.float64]) -> Finding:
    """The simulator's y [COLUMNS] against the closed form."""
    expected = expected_values()
    if values.shape != expected.shape:
        return problem(f"{values.size} values came back, {expected.size} were expected", _REINSTALL)
    worst = int(np.argmax(np.abs(values - expected)))
    if not abs(values[worst] - expected[worst]) <= TOLERANCE:
        return problem(
            f"wrong values: column {worst} is {values[worst]:g}, by arithmetic {expected[worst]:g}",
            f"do not trust this compiler's graphs: {_REINSTALL}",
        )
    return ok(f"{values.size} values as by arithmetic")
