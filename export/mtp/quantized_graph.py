"""From the float step graph and its ranges to the QDQ graph that the NPU takes.

Activations are uint16, asymmetric. Keys and values are int16, symmetric: HTP would turn a 16-bit unsigned second
operand of a MatMul into 8 bits without a word. `embedding`, `hidden` and `next_hidden` share one range, so the CPU
hands the codes of a step on to the next as they are; so do all chunks of the logits, whose codes then compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.activation_params import Range, activation_params, boundary_of, owners_of
from export.errors import ExportError
from export.graphs.mtp import KINDS
from export.passes import run_passes
from export.passes.common import name_of
from export.passes.quantize_activations import QuantizeActivations
from export.passes.quantize_boundary import QuantizeBoundary
from export.passes.quantize_weights import QuantizeWeights
from export.passes.tie_ranges import TieRanges
from quant.dtypes import INT4, INT8

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from export.engines.graph_io import Boundary
    from quant.weights import QuantizedWeight

WEIGHT_TYPES = {4: INT4, 8: INT8}


@dataclass(frozen=True)
class QuantizedStep:
    """The QDQ model, its integer boundary and the codes of every weight by name."""

    model: ir.Model
    boundary: Boundary
    weights: dict[str, QuantizedWeight]


def quantize_step(model: ir.Model, ranges: Mapping[str, Range], bits: int) -> QuantizedStep:
    """Quantise the float step graph in place (its weights are consumed).

    Raises:
        ExportError: bits other than 4 and 8.
        PassError: a value without a range, or a graph of another form.
    """
    if bits not in WEIGHT_TYPES:
        raise ExportError(f"{bits}-bit weights are not supported on HTP; use one of {sorted(WEIGHT_TYPES)}")
    logits = [name_of(v) for v in model.graph.outputs if name_of(v).startswith("logits_")]
    run_passes(model, [TieRanges([("embedding", "hidden", "next_hidden"), logits])])
    symmetric = {f"{role}_{kind}" for role in ("keys", "values") for kind in KINDS}
    params, owners = activation_params(model.graph, ranges, symmetric), owners_of(model.graph)
    weights = QuantizeWeights(WEIGHT_TYPES[bits])
    run_passes(model, [weights, QuantizeActivations(params), QuantizeBoundary()])
    return QuantizedStep(model, boundary_of(model.graph, params, owners), weights.quantized)
