"""Quantisation parameters of every activation of a graph, from observed ranges, fixed ones and given ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from export.engines.graph_io import Boundary, BoundaryTensor
from export.errors import ExportError
from export.graphs.feeds import MASKED
from export.graphs.mtp import KINDS
from export.passes.common import float_values, name_of, static_shape
from export.passes.tie_ranges import range_groups
from quant.affine import AffineParams, choose_asymmetric, choose_symmetric
from quant.dtypes import UINT16

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from quant.dtypes import IntegerType

_HEADROOM = 1.25
"""Ranges are widened by this: it costs a third of a bit and keeps unseen prompts from saturating."""

Range = tuple[float, float]


def activation_params(
    graph: ir.Graph,
    ranges: Mapping[str, Range],
    symmetric: Mapping[str, IntegerType] | None = None,
    given: Mapping[str, AffineParams] | None = None,
) -> dict[str, AffineParams]:
    """Range owner -> parameters: `given` ones, else those that arithmetic fixes, else the union of the ranges.

    uint16, asymmetric; owners in `symmetric` are symmetric, of the type stated there. TieRanges must have run.

    Raises:
        ExportError: a value without a range, ranges of another graph, tied values that are given different parameters.
    """
    groups, fixed, masked = range_groups(graph), _fixed_ranges(graph), masked_sums(graph)
    symmetric = symmetric or {}
    unknown = sorted(ranges.keys() - {name for names in groups.values() for name in names})
    if unknown:
        raise ExportError(f"the calibration is of another graph, this one has no {unknown[:5]}: calibrate it again")
    params = {}
    for owner, names in groups.items():
        told = _given(owner, names, given or {})
        if told is not None:
            params[owner] = told
            continue
        known = [fixed[name] for name in names if name in fixed]
        if not known:
            missing = [name for name in names if name not in ranges]
            if missing:
                raise ExportError(f"the calibration has no range for {missing}: calibrate this very graph again")
            known = [(_HEADROOM * ranges[name][0], _HEADROOM * ranges[name][1]) for name in names]
            known += [(MASKED, 0.0) for name in names if name in masked]
        low, high = min(r[0] for r in known), max(r[1] for r in known)
        if owner in symmetric:
            params[owner] = choose_symmetric(torch.tensor(max(-low, high)), symmetric[owner])
        else:
            params[owner] = choose_asymmetric(torch.tensor(low), torch.tensor(high), UINT16)
    return params


def boundary_of(graph: ir.Graph, params: Mapping[str, AffineParams], owners: Mapping[str, str]) -> Boundary:
    """The integer boundary of a quantised graph; `owners` maps a value's name to its range owner."""
    return Boundary(
        inputs=tuple(_boundary_tensor(v, params[owners[name_of(v)]]) for v in graph.inputs),
        outputs=tuple(_boundary_tensor(v, params[owners[name_of(v)]]) for v in graph.outputs),
    )


def owners_of(graph: ir.Graph) -> dict[str, str]:
    """Value name -> range owner (TieRanges must have run)."""
    return {name: owner for owner, names in range_groups(graph).items() for name in names}


def masked_sums(graph: ir.Graph) -> dict[str, str]:
    """Scores plus mask -> the mask: they must reach down to it, also where no calibration prompt left a slot empty."""
    masks = [value for value in graph.inputs if value.name in {f"mask_{kind}" for kind in KINDS}]
    return {name_of(output): name_of(mask) for mask in masks for node, _ in mask.uses() for output in node.outputs}


def _given(owner: str, names: list[str], given: Mapping[str, AffineParams]) -> AffineParams | None:
    found = [given[name] for name in names if name in given]
    told = {(params.dtype.name, float(params.scale), int(params.zero_point)) for params in found}
    if len(told) > 1:
        raise ExportError(f"values tied to {owner!r} are given different quantisation: {sorted(told)}")
    return found[0] if found else None


def _fixed_ranges(graph: ir.Graph) -> dict[str, Range]:
    fixed: dict[str, Range] = {}
    for kind in KINDS:
        fixed |= {f"mask_{kind}": (MASKED, 0.0), f"cos_{kind}": (-1.0, 1.0), f"sin_{kind}": (-1.0, 1.0)}
    for value in float_values(graph):
        producer = value.producer()
        if producer is not None and producer.op_type == "Softmax":
            fixed[name_of(value)] = (0.0, 1.0)
    return fixed


def _boundary_tensor(value: ir.Value, params: AffineParams) -> BoundaryTensor:
    return BoundaryTensor(
        name=name_of(value),
        dtype=params.dtype.name,
        shape=static_shape(value),
        scale=float(params.scale.item()),
        zero_point=int(params.zero_point.item()),
    )
