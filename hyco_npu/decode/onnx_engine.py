"""The drafters' float32 modules traced and run by ONNX Runtime: several times faster than torch, operator by operator.

A module is traced once for windows of any number of slots. Not the graphs that export compiles: those are static.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch

from export.graphs.mtp import MtpInputs
from export.graphs.slm import SlmInputs, kind_of_owner
from export.graphs.trace import trace_module
from hyco_npu.decode.slots import without_empty_slots
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from export.engines.graph_io import Feed
    from hyco_npu.decode.engines import TorchMtp, TorchSlm

_LARGEST = 1 << 30
_EXAMPLE_SLOTS = 128
"""Of the window that a module is traced with; any number that is no other dimension of it would do."""


@dataclass(frozen=True)
class _Boundary:
    """Example shapes by input, the outputs' names, which dimensions are open, rows behind the slots of a mask."""

    shapes: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    dynamic_shapes: Any
    rows: int


class OnnxGraph:
    """A traced module. Raises UsageError for one that is too large to be handed over in memory."""

    def __init__(self, module: torch.nn.Module, boundary: _Boundary) -> None:
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        if size > _LARGEST:
            raise UsageError(f"a drafter takes {size:,} bytes in float32; use --engine torch, qdq or simulator")
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # torch's threads work between two runs of this session
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        traced = trace_module(module, boundary.shapes, boundary.outputs, boundary.dynamic_shapes)
        model = ir.to_proto(traced).SerializeToString()
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._rows, self._outputs = boundary.rows, boundary.outputs
        self.inputs = tuple(boundary.shapes)

    def run(self, feed: Feed) -> Feed:
        """One step or pass."""
        inputs = {name: np.ascontiguousarray(array) for name, array in without_empty_slots(feed, self._rows).items()}
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))


def onnx_mtp(head: TorchMtp) -> OnnxGraph:
    """The head's step graph."""
    shapes = MtpInputs(head.module.config, _EXAMPLE_SLOTS).shapes()
    slots = torch.export.Dim("slots", min=2)
    dynamic = tuple(_open(name, slots, 0) for name in shapes)
    return OnnxGraph(head.module, _Boundary(shapes, ("next_hidden", "logits_0"), dynamic, 0))


def onnx_slm(slm: TorchSlm) -> OnnxGraph:
    """The SLM's graph of `slm.rows` rows, for drafts and prompts."""
    config, rows = slm.module.config, slm.rows
    # both kinds of layers have windows of their own
    inputs = SlmInputs(config, rows, config.sliding_window + rows + _EXAMPLE_SLOTS)
    shapes = inputs.shapes()
    slots = {kind: torch.export.Dim(f"{kind}_slots", min=2) for kind in ("sliding", "full")}

    def kind_of(name: str) -> str:
        end = name.rpartition("_")[2]
        return kind_of_owner(config, int(end)) if end.isdecimal() else end

    opened = [_open(name, slots.get(kind_of(name)), rows) for name in shapes]
    # as the module's forward takes them
    dynamic = {"embedding": opened[0], "per_layer": opened[1], "others": tuple(opened[2:])}
    outputs = tuple("logits_0" if name == "logits" else name for name in inputs.output_shapes())
    return OnnxGraph(slm.module, _Boundary(shapes, outputs, dynamic, rows))


def _open(name: str, slots: Any, rows: int) -> dict[int, Any]:
    """Which dimension of an input is a number of slots."""
    if "keys_" in name:
        return {3: slots}
    if "values_" in name:
        return {2: slots}
    return {3: slots + rows if rows else slots} if name.startswith("mask_") else {}
