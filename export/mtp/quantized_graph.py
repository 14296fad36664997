"""From the float step graph and its ranges to the QDQ graph that the NPU takes.

Activations are uint16, asymmetric. Keys and values are symmetric, int16 or int8: HTP would turn a 16-bit unsigned
second operand of a MatMul into 8 bits without a word. 16-bit ones are multiplied in pieces (split_products.py).

`embedding`, `hidden` and `next_hidden` share one range, so the CPU hands the codes of a step on to the next as they
are; so do all chunks of the logits, whose codes then compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.activation_params import Range, activation_params, boundary_of, owners_of
from export.errors import ExportError
from export.graphs.mtp import KINDS
from export.mtp.split_products import SplitProducts, worth_splitting
from export.passes import run_passes
from export.passes.common import name_of
from export.passes.quantize_activations import QuantizeActivations
from export.passes.quantize_boundary import QuantizeBoundary
from export.passes.quantize_weights import QuantizeWeights
from export.passes.tie_ranges import TieRanges
from quant.dtypes import INT4, INT8, INT16

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from export.engines.graph_io import Boundary
    from quant.weights import QuantizedWeight

WEIGHT_TYPES = {4: INT4, 8: INT8}
KV_TYPES = {16: INT16, 8: INT8}
HIDDEN_TIE = ("embedding", "hidden", "next_hidden")
"""Values that share a range, so that the codes of one step are those of the next."""


@dataclass(frozen=True)
class QuantizedStep:
    """The QDQ model, its integer boundary and the codes of every weight by name."""

    model: ir.Model
    boundary: Boundary
    weights: dict[str, QuantizedWeight]


def quantize_step(
    model: ir.Model,
    ranges: Mapping[str, Range],
    bits: int,
    kv_bits: int = 16,
    given: Mapping[str, QuantizedWeight] | None = None,
) -> QuantizedStep:
    """Quantise the float step graph in place (its weights are consumed); weights with `given` codes get those.

    Raises:
        ExportError: bits other than 4 and 8, kv_bits other than 16 and 8, a value without a range, codes `given` for a
            weight that the graph does not have.
        PassError: a graph of another form.
    """
    if bits not in WEIGHT_TYPES:
        raise ExportError(f"{bits}-bit weights are not supported on HTP; use one of {sorted(WEIGHT_TYPES)}")
    if kv_bits not in KV_TYPES:
        raise ExportError(f"{kv_bits}-bit keys and values are not supported; use one of {sorted(KV_TYPES)}")
    if kv_bits == 16 and worth_splitting(model.graph):
        split = SplitProducts()
        run_passes(model, [split])
        ranges = {**ranges, **split.ranges_from(ranges)}
    logits = [name_of(v) for v in model.graph.outputs if name_of(v).startswith("logits_")]
    run_passes(model, [TieRanges([HIDDEN_TIE, logits])])
    symmetric = {f"{role}_{kind}": KV_TYPES[kv_bits] for role in ("keys", "values") for kind in KINDS}
    params, owners = activation_params(model.graph, ranges, symmetric), owners_of(model.graph)
    weights = QuantizeWeights(WEIGHT_TYPES[bits], given)
    run_passes(model, [weights, QuantizeActivations(params), QuantizeBoundary()])
    if unused := sorted(set(given or ()) - set(weights.quantized)):
        raise ExportError(f"codes are given for {unused[0]!r}, which is no weight of the graph")
    return QuantizedStep(model, boundary_of(model.graph, params, owners), weights.quantized)
