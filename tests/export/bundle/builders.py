"""A small but real bundle: an .onnx with external data, an EPContext graph with its binary, keep set and table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from calibration.keepset import KeepSet
from export.bundle import (
    Bundle,
    BundleWriter,
    CalibrationInfo,
    GraphInfo,
    KeepSetInfo,
    Manifest,
    SourceInfo,
    TableInfo,
    TargetStatus,
    TensorInfo,
)
from export.bundle.manifest import SlmInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHA_A, SHA_B, SHA_C = "a" * 64, "b" * 64, "c" * 64
KEEP_SET = KeepSet(np.array([1, 5, 9, 106]), 107)


def save_external_onnx(path: Path, location: str) -> None:
    """y = x @ w with the weight (all of it, however small) in the external file `location`."""
    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    onnx.save_model(model, str(path), save_as_external_data=True, location=location, size_threshold=0)


def save_context_onnx(path: Path, binary: str, *, embed_mode: int = 0) -> None:
    """The file that ONNX Runtime writes beside a compiled binary: one EPContext node naming it."""
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=embed_mode, ep_cache_context=binary.encode()
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT16, [1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.UINT16, [1, 4])],
    )
    onnx.save_model(helper.make_model(graph), str(path))


def example_manifest(**changes: Any) -> Manifest:
    """A manifest whose files `write_example` writes; not listing them yet."""
    graph = GraphInfo(
        name="step",
        rows=1,
        files={"qdq": "step.onnx", "context": "step_ctx.onnx", "binary": "step.bin"},
        inputs=(TensorInfo(name="x", dtype="uint16", shape=(1, 3), scale=0.25, zero_point=32768),),
        outputs=(TensorInfo(name="y", dtype="uint16", shape=(1, 4), scale=1e-05, zero_point=0),),
        weight_bytes=6,
        nodes_on_npu=1,
        nodes_off_npu=0,
    )
    fields: dict[str, Any] = {
        "kind": "mtp",
        "created_utc": datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC),
        "tool_versions": {"onnx": "1.23.0", "onnxruntime": "1.32.0", "torch": "2.13.0"},
        "source": SourceInfo(origin="org/head", revision="f" * 40, sha256=SHA_A, config={"layers": [1, 2], "width": 8}),
        "bits": 4,
        "window": 1024,
        "position_rule": "p-1",
        "keep_set": KeepSetInfo(file="keep_set.json", size=4, sha256=KEEP_SET.sha256, vocab_size=107),
        "calibration": CalibrationInfo(source="prompts:" + SHA_C, sha256=SHA_C),
        "seed": 0,
        "graphs": (graph,),
        "table": TableInfo(file="tables/embedding.safetensors", rows=4, width=8, bits=8, size_bytes=32),
        "parity": {"fp32_max_abs": 3.5e-06, "sqnr_db": 41.25},
        "targets": (
            TargetStatus(
                target="sm8850", soc_model=87, htp_arch="v81", qnn_version="2.51.0", compiled=True, simulated=True
            ),
            TargetStatus(target="sm8750", soc_model=69, htp_arch="v79", compiled=False, simulated=False),
        ),
    }
    return Manifest(**{**fields, **changes})


def slm_info(**changes: Any) -> SlmInfo:
    """What an SLM's manifest has beside, for graphs "draft" and "prefill"."""
    fields: dict[str, Any] = {
        "draft_graph": "draft",
        "prefill_graph": "prefill",
        "two_bit": "int4",
        "head_bits": 4,
        "activation_clip": True,
        "weight_bytes_by_kind": {"attention": 2, "mlp": 4},
    }
    return SlmInfo(**{**fields, **changes})


def example_slm(**changes: Any) -> Manifest:
    """The manifest of an SLM of mixed bits: the example's graph twice, a table of per-layer embeddings."""
    graph = example_manifest().graphs[0]
    fields: dict[str, Any] = {
        "kind": "slm",
        "bits": None,
        "position_rule": "p",
        "graphs": tuple(graph.model_copy(update={"name": name}) for name in ("draft", "prefill")),
        "per_layer_table": TableInfo(file="tables/per_layer.safetensors", rows=4, width=6, bits=4, size_bytes=12),
        "slm": slm_info(),
    }
    return example_manifest(**{**fields, **changes})


def fill(writer: BundleWriter) -> None:
    """Write every file that `example_manifest` names, and a tokenizer."""
    save_external_onnx(writer.path("step.onnx"), "step.onnx.data")
    save_context_onnx(writer.path("step_ctx.onnx"), "step.bin")
    writer.path("step.bin").write_bytes(b"abc")
    KEEP_SET.save(writer.path("keep_set.json"))
    writer.path("tables/embedding.safetensors").write_bytes(bytes(range(32)))
    writer.path("tokenizer.json").write_text("{}")


def write_example(
    out: Path, *, force: bool = False, alter: Callable[[BundleWriter], object] | None = None, **changes: Any
) -> Bundle:
    """A finished bundle at `out`; `alter` runs when all files are written and the manifest is not."""
    with BundleWriter(out, force=force) as writer:
        fill(writer)
        if alter is not None:
            alter(writer)
        return writer.finish(example_manifest(**changes))
