"""Bundles for one graph at a time: a head, and an SLM whose two graphs lie in one binary.

The binaries are no code of a NPU but JSON that says which graphs they hold, for the stand-in of Qualcomm's tools.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, helper

from export.bundle import Bundle, BundleWriter, GraphInfo, TargetStatus, TensorInfo
from tests.export.bundle.builders import example_manifest, example_slm, fill

if TYPE_CHECKING:
    from pathlib import Path

QNN_VERSION = "v2.51.0.260929181845"
STEP_NAME, DRAFT_NAME, PREFILL_NAME = (f"QNNExecutionProvider_{number}_1_0" for number in (141, 27, 355))
"""The graphs' names in their binaries, in the form that ONNX Runtime gives them."""

TARGET = TargetStatus(
    target="sm8850", soc_model=87, htp_arch="v81", qnn_version=QNN_VERSION, compiled=True, simulated=True
)
_QNN_TYPES = {"uint16": "QNN_DATATYPE_UFIXED_POINT_16", "int8": "QNN_DATATYPE_SFIXED_POINT_8"}


def save_context(path: Path, binary: str, partition: str) -> None:
    """An EPContext model as ONNX Runtime 1.32 writes it."""
    node = helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        name=partition,
        domain="com.microsoft",
        embed_mode=0,
        main_context=1,
        ep_cache_context=binary.encode(),
        ep_sdk_version=QNN_VERSION.encode(),
        partition_name=partition.encode(),
        source=b"QNNExecutionProvider",
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT16, [1, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.UINT16, [1, 4])]
    onnx.save_model(helper.make_model(helper.make_graph([node], "g", inputs, outputs)), str(path))


def graph_info(name: str, rows: int, binary: str) -> GraphInfo:
    """A graph with a uint16 input of zero point 32768 and an int8 one of zero point 0."""
    return GraphInfo(
        name=name,
        rows=rows,
        files={"qdq": "step.onnx", "context": f"{name}_ctx.onnx", "binary": binary},
        inputs=(
            TensorInfo(name="x", dtype="uint16", shape=(rows, 3), scale=0.25, zero_point=32768),
            TensorInfo(name="past_keys", dtype="int8", shape=(1, 2, 5), scale=0.5, zero_point=0),
        ),
        outputs=(TensorInfo(name="y", dtype="uint16", shape=(rows, 4), scale=1e-05, zero_point=0),),
        weight_bytes=6,
    )


def binary_text(graphs: dict[str, GraphInfo]) -> str:
    """A binary of these graphs, by their names in it."""
    return json.dumps(
        {
            "graphs": [
                {
                    "name": name,
                    "inputs": [
                        {"name": t.name, "dataType": _QNN_TYPES[t.dtype], "dimensions": list(t.shape)}
                        for t in info.inputs
                    ],
                }
                for name, info in graphs.items()
            ]
        }
    )


def write_head(out: Path, **changes: Any) -> Bundle:
    """A head's bundle: one graph, one binary."""
    step = graph_info("mtp_step", 1, "step.bin")
    with BundleWriter(out) as writer:
        fill(writer)
        writer.path("step_ctx.onnx").unlink()
        save_context(writer.path("mtp_step_ctx.onnx"), "step.bin", STEP_NAME)
        writer.path("step.bin").write_text(binary_text({STEP_NAME: step}))
        return writer.finish(example_manifest(**{"graphs": (step,), "targets": (TARGET,), **changes}))


def write_slm(out: Path, **changes: Any) -> Bundle:
    """An SLM's bundle: two graphs in one binary, the prefill graph in front, as the compiler may order them."""
    draft, prefill = graph_info("draft", 2, "shared.bin"), graph_info("prefill", 4, "shared.bin")
    with BundleWriter(out) as writer:
        fill(writer)
        for name in ("step_ctx.onnx", "step.bin"):
            writer.path(name).unlink()
        writer.path("tables/per_layer.safetensors").write_bytes(bytes(12))
        save_context(writer.path("draft_ctx.onnx"), "shared.bin", DRAFT_NAME)
        save_context(writer.path("prefill_ctx.onnx"), "shared.bin", PREFILL_NAME)
        writer.path("shared.bin").write_text(binary_text({PREFILL_NAME: prefill, DRAFT_NAME: draft}))
        return writer.finish(example_slm(**{"graphs": (draft, prefill), "targets": (TARGET,), **changes}))
