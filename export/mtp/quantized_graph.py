"""From the float step graph and its ranges to the QDQ graph that the NPU takes.

Activations are uint16, asymmetric. Keys and values are int16, symmetric: HTP would turn a 16-bit unsigned second
operand of a MatMul into 8 bits without a word. `embedding`, `hidden` and `next_hidden` share one range, so the CPU
hands the codes of a step on to the next as they are; so do all chunks of the logits, whose codes then compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from export.engines.graph_io import Boundary, BoundaryTensor
from export.errors import ExportError
from export.graphs.feeds import MASKED
from export.graphs.mtp import KINDS
from export.passes import run_passes
from export.passes.common import float_values, name_of, static_shape
from export.passes.quantize_activations import QuantizeActivations
from export.passes.quantize_boundary import QuantizeBoundary
from export.passes.quantize_weights import QuantizeWeights
from export.passes.tie_ranges import TieRanges, range_groups
from quant.affine import AffineParams, choose_asymmetric, choose_symmetric
from quant.dtypes import INT4, INT8, INT16, UINT16

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from quant.weights import QuantizedWeight

WEIGHT_TYPES = {4: INT4, 8: INT8}
_HEADROOM = 1.25
"""Ranges are widened by this: at 16 bits it costs a third of a bit and keeps unseen prompts from saturating."""

Range = tuple[float, float]


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
    params = activation_params(model.graph, ranges)
    weights = QuantizeWeights(WEIGHT_TYPES[bits])
    owners = {name: owner for owner, names in range_groups(model.graph).items() for name in names}
    run_passes(model, [weights, QuantizeActivations(params), QuantizeBoundary()])
    boundary = Boundary(
        inputs=tuple(_boundary_tensor(v, params[owners[name_of(v)]]) for v in model.graph.inputs),
        outputs=tuple(_boundary_tensor(v, params[owners[name_of(v)]]) for v in model.graph.outputs),
    )
    return QuantizedStep(model, boundary, weights.quantized)


def activation_params(graph: ir.Graph, ranges: Mapping[str, Range]) -> dict[str, AffineParams]:
    """Quantisation parameters per range owner: fixed where arithmetic fixes them, else from the union of the ranges."""
    groups, fixed, masked = range_groups(graph), _fixed_ranges(graph), _masked_sums(graph)
    unknown = sorted(ranges.keys() - {name for names in groups.values() for name in names})
    if unknown:
        raise ExportError(f"the calibration is of another graph, this one has no {unknown[:5]}: calibrate it again")
    symmetric = {f"{role}_{kind}" for role in ("keys", "values") for kind in KINDS}
    params = {}
    for owner, names in groups.items():
        known = [fixed[name] for name in names if name in fixed]
        if not known:
            missing = [name for name in names if name not in ranges]
            if missing:
                raise ExportError(f"the calibration has no range for {missing}: calibrate this very graph again")
            known = [(_HEADROOM * ranges[name][0], _HEADROOM * ranges[name][1]) for name in names]
            known += [(MASKED, 0.0) for name in names if name in masked]
        low, high = min(r[0] for r in known), max(r[1] for r in known)
        if owner in symmetric:
            params[owner] = choose_symmetric(torch.tensor(max(-low, high)), INT16)
        else:
            params[owner] = choose_asymmetric(torch.tensor(low), torch.tensor(high), UINT16)
    return params


def _fixed_ranges(graph: ir.Graph) -> dict[str, Range]:
    fixed: dict[str, Range] = {}
    for kind in KINDS:
        fixed |= {f"mask_{kind}": (MASKED, 0.0), f"cos_{kind}": (-1.0, 1.0), f"sin_{kind}": (-1.0, 1.0)}
    for value in float_values(graph):
        producer = value.producer()
        if producer is not None and producer.op_type == "Softmax":
            fixed[name_of(value)] = (0.0, 1.0)
    return fixed


def _masked_sums(graph: ir.Graph) -> set[str]:
    """Scores plus mask: they must reach down to the mask, also where no calibration prompt left a slot empty."""
    masks = {f"mask_{kind}" for kind in KINDS}
    readers = [node for value in graph.inputs if value.name in masks for node, _ in value.uses()]
    return {name_of(output) for node in readers for output in node.outputs}


def _boundary_tensor(value: ir.Value, params: AffineParams) -> BoundaryTensor:
    return BoundaryTensor(
        name=name_of(value),
        dtype=params.dtype.name,
        shape=static_shape(value),
        scale=float(params.scale.item()),
        zero_point=int(params.zero_point.item()),
    )
