"""From an SLM graph and its ranges to the QDQ graph that the NPU takes.

Activations are uint16, asymmetric; keys and values are int8, symmetric, with the checkpoint's own scales: they enter,
are concatenated and leave as 8-bit codes. The checkpoint's clips become ranges. Linear layers that the checkpoint
leaves in floats get 8-bit weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from export.activation_params import activation_params, boundary_of, owners_of
from export.passes import run_passes
from export.passes.common import float_values, name_of
from export.passes.convert_caches import DropConversions
from export.passes.fold_clips import FoldClips
from export.passes.quantize_activations import QuantizeActivations
from export.passes.quantize_boundary import QuantizeBoundary
from export.passes.quantize_weights import QuantizeWeights
from export.passes.tie_ranges import TieRanges
from quant.affine import AffineParams, choose_asymmetric
from quant.dtypes import INT8, UINT16

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from export.activation_params import Range
    from export.checkpoint.slm import SlmCheckpoint
    from export.engines.graph_io import Boundary
    from quant.weights import QuantizedWeight


@dataclass(frozen=True)
class QuantizedSlm:
    """The QDQ model, its integer boundary, and the weights that were quantised here, by name."""

    model: ir.Model
    boundary: Boundary
    weights: dict[str, QuantizedWeight]


def quantize_slm(model: ir.Model, ranges: Mapping[str, Range], checkpoint: SlmCheckpoint) -> QuantizedSlm:
    """Quantise a graph of `build_graph` in place. `ranges` may be those of the draft graph for the prefill graph.

    Raises:
        ExportError: a value without a range. PassError: a graph of another form.
    """
    graph = model.graph
    clips = FoldClips()
    run_passes(model, [clips])
    logits = [name_of(v) for v in graph.outputs if name_of(v).startswith("logits_")]
    run_passes(model, [TieRanges([logits] if logits else [])])
    here = {name_of(value) for value in float_values(graph)}
    given = {
        name: choose_asymmetric(torch.tensor(low), torch.tensor(high), UINT16)
        for name, (low, high) in clips.bounds.items()
    }
    given |= _cache_params(checkpoint)
    known = {name: found for name, found in ranges.items() if name in here}
    params, owners = activation_params(graph, known, given=given), owners_of(graph)
    weights = QuantizeWeights(INT8)
    run_passes(model, [weights, QuantizeActivations(params), DropConversions(), QuantizeBoundary()])
    return QuantizedSlm(model, boundary_of(graph, params, owners), weights.quantized)


def _cache_params(checkpoint: SlmCheckpoint) -> dict[str, AffineParams]:
    """The 8-bit form of every owner's new keys and values, and so of all that is tied to them."""
    params = {}
    for owner in checkpoint.config.cache_owners:
        keys, values = checkpoint.cache_scales(owner)
        for name, scale in ((f"new_keys_{owner}", keys), (f"new_values_{owner}", values)):
            params[name] = AffineParams(torch.tensor(scale), torch.tensor(0, dtype=torch.int32), INT8)
    return params
