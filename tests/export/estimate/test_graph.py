"""Scale, floor and ratio of one graph in closed form."""

from __future__ import annotations

import math

import pytest

from export.estimate.graph import EstimateOptions, graph_estimate
from export.estimate.profile import Profile
from export.estimate.proxy import ProxyCompile
from quant.errors import UsageError

from .builders import WEIGHT_BYTES, graph_info

PROFILE = Profile(
    cycles=1000,
    cycles_low=900,
    cycles_high=1200,
    us=500,
    us_low=400,
    us_high=700,
    input_fill_bytes=10,
    intermediate_fill_bytes=200,
    intermediate_spill_bytes=3000,
    output_spill_bytes=40000,
    missing_costs=2,
)
COMPILED = ProxyCompile(PROFILE, 5000, "v2.51.0")


@pytest.mark.parametrize("scale", [1.0, 1.5, 0.25])
@pytest.mark.parametrize("gbps", [60.0, 0.5])
def test_one_graph(scale: float, gbps: float) -> None:
    rows = 8
    found = graph_estimate(graph_info("g", rows), "slm", COMPILED, EstimateOptions(gbps, scale))
    crossing = WEIGHT_BYTES + 2 * rows * (512 + 256)
    floor = crossing / (gbps * 1e9) * 1e6
    assert (found.us_low, found.us, found.us_high) == (400 * scale, 500 * scale, 700 * scale)
    assert (found.cycles_low, found.cycles, found.cycles_high) == (900, 1000, 1200)
    assert (found.fill_bytes, found.spill_bytes) == (210, 43000)
    assert found.missing_costs == 2
    assert found.weight_bytes == 512 * 256 // 2 + 256 * 4
    assert found.boundary_bytes == crossing - WEIGHT_BYTES
    assert found.binary_bytes == 5000
    assert found.floor_us == pytest.approx(floor)
    assert found.ratio == pytest.approx(500 * scale / floor)


@pytest.mark.parametrize(
    ("scale", "label"), [(1.0, "estimate (proxy chip)"), (1.25, "estimate (proxy chip, times scaled by 1.25)")]
)
def test_the_label_names_the_scale(scale: float, label: str) -> None:
    assert graph_estimate(graph_info("g", 1), "mtp", COMPILED, EstimateOptions(scale=scale)).label == label


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(("field", "option"), [("bandwidth_gbps", "--bandwidth-gbps"), ("scale", "--scale")])
def test_options_without_sense(field: str, option: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{option} is .*; want a finite number above 0"):
        EstimateOptions(**{field: value})
