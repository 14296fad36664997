"""Transposes of weights disappear; transposes of activations stay."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from export.passes import run_passes
from export.passes.common import weight_matmuls
from export.passes.fold_transposes import FoldTransposes

from .builders import graph_of, nodes_of, random, run_ort, run_reference


@pytest.mark.parametrize("permutation", [[1, 0], None])
def test_same_numbers_and_a_constant_matrix(permutation: list[int] | None) -> None:
    attributes = {} if permutation is None else {"perm": permutation}
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], **attributes),
        helper.make_node("MatMul", ["x", "wt"], ["y"], name="linear"),
        helper.make_node("Transpose", ["y"], ["z"], perm=[1, 0]),
    ]
    weight, feed = random(5, 8), {"x": random(3, 8, seed=1)}
    model = graph_of(nodes, {"x": [3, 8]}, {"z": [5, 3]}, {"w": weight})
    before = run_reference(model, feed)["z"]
    run_passes(model, [FoldTransposes()])
    assert [node.name for node in weight_matmuls(model.graph)] == ["linear"]
    assert len(nodes_of(model, "Transpose")) == 1
    assert list(model.graph.initializers) == ["w.transposed"]
    np.testing.assert_allclose(run_reference(model, feed)["z"], before, atol=1e-6)
    np.testing.assert_allclose(run_ort(model, feed)["z"], before, atol=1e-5)


def test_nothing_to_do() -> None:
    model = graph_of([helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])], {"x": [2, 3]}, {"y": [3, 2]}, {})
    assert FoldTransposes()(model).modified is False
