"""The smallest graph that a compiler can cost, in bundles of both kinds, and a compiler that answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.bundle import Bundle, BundleWriter, GraphInfo, TensorInfo
from export.estimate.profile import read_profile
from export.estimate.proxy import ProxyCompile

from ..bundle.builders import KEEP_SET, example_manifest, slm_info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from export.bundle import Manifest

WIDTH_IN, WIDTH_OUT = 512, 256  # large enough for some whole microseconds
WEIGHT_BYTES = WIDTH_IN * WIDTH_OUT // 2 + WIDTH_OUT * 4  # 4-bit codes, a float32 scale for each column
ROW_BYTES = 2 * (WIDTH_IN + WIDTH_OUT)  # 16-bit codes in and out
REAL_CSV = Path(__file__).parent / "data" / "mtp_step_26b_a4b.csv"
"""Recorded from QNN 2.51.0 for the MTP head of the 26B-A4B's dimensions with random weights."""

QNN_VERSION = "v2.51.0.260929181845"


def save_qdq(path: Path, rows: int) -> None:
    """y [1, 1, rows, 256] = x [1, 1, rows, 512] @ w, 16-bit activations, 4-bit weight with a scale for each column."""
    codes = np.random.default_rng(0).integers(-8, 8, WIDTH_IN * WIDTH_OUT)
    constants = [
        helper.make_tensor("w", TensorProto.INT4, [WIDTH_IN, WIDTH_OUT], codes.tolist()),
        numpy_helper.from_array(np.full(WIDTH_OUT, 0.01, np.float32), "w_scale"),
        numpy_helper.from_array(np.float32(1e-4), "scale"),
        numpy_helper.from_array(np.uint16(32768), "zero"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["xf"], name="dq_x"),
        helper.make_node("DequantizeLinear", ["w", "w_scale"], ["wf"], name="dq_w", axis=1),
        helper.make_node("MatMul", ["xf", "wf"], ["yf"], name="product"),
        helper.make_node("QuantizeLinear", ["yf", "scale", "zero"], ["y"], name="q_y"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT16, [1, 1, rows, WIDTH_IN])],
        [helper.make_tensor_value_info("y", TensorProto.UINT16, [1, 1, rows, WIDTH_OUT])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    model.ir_version = 11
    onnx.save_model(model, str(path))


def graph_info(name: str, rows: int, **changes: object) -> GraphInfo:
    """The manifest's entry of `save_qdq`'s graph."""
    fields: dict[str, object] = {
        "name": name,
        "rows": rows,
        "files": {"qdq": f"graphs/{name}.qdq.onnx"},
        "inputs": (TensorInfo(name="x", dtype="uint16", shape=(1, 1, rows, WIDTH_IN), scale=1e-4, zero_point=32768),),
        "outputs": (TensorInfo(name="y", dtype="uint16", shape=(1, 1, rows, WIDTH_OUT), scale=1e-4, zero_point=32768),),
        "weight_bytes": WEIGHT_BYTES,
    }
    return GraphInfo.model_validate({**fields, **changes})


def write_bundle(out: Path, kind: str, rows: Mapping[str, int]) -> Bundle:
    """A bundle of `kind` with a graph of so many rows for each name in `rows`."""
    graphs = tuple(graph_info(name, count) for name, count in rows.items())
    narrowest, *_, widest = sorted([*rows, *rows], key=rows.__getitem__)
    slm = slm_info(draft_graph=narrowest, prefill_graph=widest) if kind == "slm" else None
    with BundleWriter(out) as writer:
        for name, count in rows.items():
            save_qdq(writer.path(f"graphs/{name}.qdq.onnx"), count)
        KEEP_SET.save(writer.path("keep_set.json"))
        return writer.finish(plain_manifest(kind=kind, graphs=graphs, slm=slm))


def plain_manifest(**changes: object) -> Manifest:
    """A manifest without table and targets."""
    return example_manifest(**{"table": None, "targets": (), **changes})


def recorded_compile(qdq: Path, scratch: Path, *, two_bit: bool) -> ProxyCompile:
    """Stands for the compiler: the recorded profile, whatever the graph and the form of its weights."""
    assert qdq.is_file()
    assert list(scratch.iterdir()) == []
    return ProxyCompile(read_profile(REAL_CSV), 123_248_640, QNN_VERSION)
