"""What moves numbers shares their range."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.tie_ranges import RANGE_OWNER, TieRanges, range_groups

from .builders import graph_of

if TYPE_CHECKING:
    import onnx_ir as ir


def moving_graph() -> ir.Model:
    """a -> Reshape -> Split -> (left, right); Concat(right, left, b) -> Transpose; c = a + 1 apart."""
    nodes = [
        helper.make_node("Reshape", ["a", "shape"], ["flat"]),
        helper.make_node("Split", ["flat"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["right", "left", "b"], ["joined"], axis=1, name="concat"),
        helper.make_node("Transpose", ["joined"], ["moved"], perm=[1, 0]),
        helper.make_node("Add", ["a", "a"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["bent"]),
    ]
    outputs = {"moved": [7, 1], "bent": [2, 2]}
    return graph_of(nodes, {"a": [2, 2], "b": [1, 3]}, outputs, {"shape": np.array([1, 4])})


def test_moves_share_and_arithmetic_does_not() -> None:
    model = moving_graph()
    run_passes(model, [TieRanges()])
    assert range_groups(model.graph) == {
        "a": ["a", "b", "flat", "left", "right", "joined", "moved"],
        "sum": ["sum"],
        "bent": ["bent"],
    }


def test_given_ties_join_whole_groups() -> None:
    model = moving_graph()
    run_passes(model, [TieRanges([("bent", "moved"), ("sum",)])])
    groups = range_groups(model.graph)
    assert groups.keys() == {"a", "sum"}  # the first in graph order owns
    assert "bent" in groups["a"]


def test_order_of_ties_does_not_matter() -> None:
    results = []
    for ties in ([("a", "sum"), ("sum", "bent")], [("sum", "bent"), ("sum", "a")], [("bent", "a", "sum")]):
        model = moving_graph()
        run_passes(model, [TieRanges(ties)])
        results.append(range_groups(model.graph))
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 1


def test_unknown_names() -> None:
    with pytest.raises(PassError, match=r"TieRanges failed: tied values do not exist: \['nobody', 'nothing'\]"):
        run_passes(moving_graph(), [TieRanges([("a", "nothing"), ("nobody", "b")])])


def test_postcondition_names_the_node() -> None:
    class Forgetful(TieRanges):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            result = super().call(model)
            model.graph.inputs[1].metadata_props[RANGE_OWNER] = "elsewhere"
            return result

    with pytest.raises(PassError, match="Forgetful failed: Concat concat joins ranges of"):
        run_passes(moving_graph(), [Forgetful()])
