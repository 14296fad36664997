"""Which passes a drafting round has, and their sum."""

from __future__ import annotations

import dataclasses

import pytest

from export.estimate.graph import EstimateOptions, GraphEstimate, graph_estimate
from export.estimate.round import RoundPart, drafting_round

from .builders import graph_info
from .test_graph import COMPILED


def graph(name: str, kind: str, rows: int, us: float) -> GraphEstimate:
    """Bounds at 0.9 and 1.2 of the time, the floor at a half."""
    base = graph_estimate(graph_info(name, rows), kind, COMPILED, EstimateOptions())
    return dataclasses.replace(base, missing_costs=0, us=us, us_low=0.9 * us, us_high=1.2 * us, floor_us=us / 2)


STEP, DRAFT, PREFILL = graph("step", "mtp", 1, 100), graph("draft", "slm", 32, 1000), graph("prefill", "slm", 128, 2000)


@pytest.mark.parametrize(
    "graphs", [[STEP, DRAFT, PREFILL], [PREFILL, DRAFT, STEP]], ids=["in order", "in another order"]
)
def test_four_steps_and_the_pass_of_fewest_rows(graphs: list[GraphEstimate]) -> None:
    one = drafting_round(graphs)
    assert one.parts == (RoundPart("mtp", "step", 4), RoundPart("slm", "draft", 1))
    assert one.missing_kinds == ()
    assert (one.us, one.floor_us) == (1400, 700)
    assert (one.us_low, one.us_high) == pytest.approx((1260, 1680))
    assert one.ratio == 2
    assert str(one) == "4 x step + 1 x draft"


def test_the_chain_alone() -> None:
    one = drafting_round([STEP])
    assert one.parts == (RoundPart("mtp", "step", 4),)
    assert one.missing_kinds == ("slm",)
    assert (one.us, one.floor_us) == (400, 200)


def test_the_tree_pass_alone() -> None:
    one = drafting_round([PREFILL, DRAFT])
    assert one.parts == (RoundPart("slm", "draft", 1),)
    assert one.missing_kinds == ("mtp",)
    assert one.us == 1000
