"""Column i of the cut output layer is token keep[i]."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.restrict_vocabulary import RestrictVocabulary

from .builders import graph_of, linear_graph, random, run_ort, run_reference


@pytest.mark.parametrize("keep", [[0], [19], [0, 1, 5, 9, 18, 19], list(range(20))])
def test_columns_are_the_keep_set(keep: list[int]) -> None:
    weight, feed = random(8, 20), {"x": random(1, 1, 1, 8, seed=1)}
    before = run_reference(linear_graph(weight), feed)["logits"]
    cut = run_passes(linear_graph(weight), [RestrictVocabulary(np.array(keep))])
    np.testing.assert_allclose(run_reference(cut, feed)["logits"], before[..., keep], atol=1e-6)
    np.testing.assert_allclose(run_ort(cut, feed)["logits"], before[..., keep], atol=1e-5)
    (stored,) = [v.const_value.numpy() for v in cut.graph.initializers.values() if v.const_value is not None]
    np.testing.assert_array_equal(stored, weight[:, keep])
    assert tuple(cut.graph.outputs[0].shape or ()) == (1, 1, 1, len(keep))


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        ([5, 1], "sorted, unique"),
        ([1, 1, 5], "sorted, unique"),
        ([], "not empty"),
        ([-1, 3], r"-1\.\.3 exceed the vocabulary of 20"),
        ([3, 20], r"3\.\.20 exceed the vocabulary of 20"),
    ],
)
def test_bad_keep_sets(keep: list[int], reason: str) -> None:
    with pytest.raises(PassError, match=f"RestrictVocabulary failed: .*{reason}"):
        run_passes(linear_graph(random(8, 20)), [RestrictVocabulary(np.array(keep))])


def test_no_such_output() -> None:
    with pytest.raises(PassError, match=r"no graph output 'logits'; outputs: \['scores'\]"):
        run_passes(linear_graph(random(8, 20), "scores"), [RestrictVocabulary(np.arange(3))])


def test_output_of_another_operator() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Tanh", ["y"], ["logits"])]
    model = graph_of(nodes, {"x": [1, 8]}, {"logits": [1, 20]}, {"w": random(8, 20)})
    with pytest.raises(PassError, match="'logits' is not produced by a MatMul with a constant matrix"):
        run_passes(model, [RestrictVocabulary(np.arange(3))])
