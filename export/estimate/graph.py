"""One pass of one graph: the compiler's profile beside the floor that memory sets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.estimate.floor import ASSUMED_BANDWIDTH_GBPS, boundary_bytes, floor_us
from quant.errors import UsageError

if TYPE_CHECKING:
    from export.bundle.manifest import GraphInfo
    from export.estimate.proxy import ProxyCompile

LABEL = "estimate (proxy chip)"


@dataclass(frozen=True)
class EstimateOptions:
    """`bandwidth_gbps` sets the floor; `scale` multiplies the compiler's times (fitted on a phone; 1: as they are).

    Raises UsageError for a value that is not a finite number above 0.
    """

    bandwidth_gbps: float = ASSUMED_BANDWIDTH_GBPS
    scale: float = 1.0

    def __post_init__(self) -> None:
        for option, value in (("--bandwidth-gbps", self.bandwidth_gbps), ("--scale", self.scale)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{option} is {value}; want a finite number above 0")


@dataclass(frozen=True)
class GraphEstimate:
    """One pass of one graph. Times are scaled microseconds, cycles are the compiler's own, `ratio` is us / floor_us.

    `fill_bytes` and `spill_bytes` are the sums of the parts below them.
    """

    name: str
    kind: str
    rows: int
    label: str
    us: float
    us_low: float
    us_high: float
    cycles: int
    cycles_low: int
    cycles_high: int
    missing_costs: int
    fill_bytes: int
    input_fill_bytes: int
    intermediate_fill_bytes: int
    spill_bytes: int
    intermediate_spill_bytes: int
    output_spill_bytes: int
    weight_bytes: int
    boundary_bytes: int
    binary_bytes: int
    floor_us: float
    ratio: float


def label_of(scale: float) -> str:
    """The label of a figure, naming a scale that is not 1."""
    return LABEL if scale == 1.0 else f"estimate (proxy chip, times scaled by {scale:g})"


def graph_estimate(graph: GraphInfo, kind: str, compiled: ProxyCompile, options: EstimateOptions) -> GraphEstimate:
    """The compiler's profile beside the graph's floor; raises BundleError for a boundary without a size."""
    profile, scale = compiled.profile, options.scale
    boundary = boundary_bytes(graph)
    floor = floor_us(graph.weight_bytes + boundary, options.bandwidth_gbps)
    return GraphEstimate(
        name=graph.name,
        kind=kind,
        rows=graph.rows,
        label=label_of(scale),
        us=profile.us * scale,
        us_low=profile.us_low * scale,
        us_high=profile.us_high * scale,
        cycles=profile.cycles,
        cycles_low=profile.cycles_low,
        cycles_high=profile.cycles_high,
        missing_costs=profile.missing_costs,
        fill_bytes=profile.input_fill_bytes + profile.intermediate_fill_bytes,
        input_fill_bytes=profile.input_fill_bytes,
        intermediate_fill_bytes=profile.intermediate_fill_bytes,
        spill_bytes=profile.intermediate_spill_bytes + profile.output_spill_bytes,
        intermediate_spill_bytes=profile.intermediate_spill_bytes,
        output_spill_bytes=profile.output_spill_bytes,
        weight_bytes=graph.weight_bytes,
        boundary_bytes=boundary,
        binary_bytes=compiled.binary_bytes,
        floor_us=floor,
        ratio=profile.us * scale / floor,
    )
