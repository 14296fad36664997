"""Chunks of the output layer cover every column once, and none is too wide for the NPU's fast memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.chunk_head import MAX_COLUMNS, ChunkHead, chunk_bounds

from .builders import graph_of, linear_graph, nodes_of, random, run_ort, run_reference

if TYPE_CHECKING:
    import onnx_ir as ir


@given(st.integers(1, 300_000), st.integers(1, 1024).map(lambda n: 32 * n))
def test_bounds_cover_every_column_once(columns: int, maximum: int) -> None:
    bounds = chunk_bounds(columns, maximum)
    assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == columns
    widths = [end - start for start, end in bounds]
    assert all(0 < width <= maximum for width in widths)
    assert all(width % 32 == 0 for width in widths[:-1])
    assert len(bounds) == -(-columns // maximum)  # no more chunks than needed


@pytest.mark.parametrize(
    ("columns", "count", "width"),
    [(86016, 6, 14336), (262144, 16, 16384), (16384, 1, 16384), (16385, 2, 8224), (7, 1, 7)],
)
def test_known_heads(columns: int, count: int, width: int) -> None:
    bounds = chunk_bounds(columns)
    assert MAX_COLUMNS == 16384
    assert len(bounds) == count
    assert bounds[0] == (0, width)


@pytest.mark.parametrize("maximum", [32, 64, 128])
def test_chunks_joined_equal_the_whole(maximum: int) -> None:
    weight, feed = random(8, 100), {"x": random(1, 1, 1, 8, seed=1)}
    whole = run_reference(linear_graph(weight), feed)["logits"]
    model = run_passes(linear_graph(weight), [ChunkHead(max_columns=maximum)])
    names = [value.name for value in model.graph.outputs]
    assert names == [f"logits_{i}" for i in range(len(chunk_bounds(100, maximum)))]
    for run in (run_reference, run_ort):
        result = run(model, feed)
        np.testing.assert_allclose(np.concatenate([result[n] for n in names if n], -1), whole, atol=1e-5)
    assert not nodes_of(model, "Concat")
    assert "w" not in model.graph.initializers


def test_other_outputs_keep_their_place() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["next_hidden"]),
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("Tanh", ["x"], ["last"]),
    ]
    outputs = {"next_hidden": [1, 4], "logits": [1, 70], "last": [1, 8]}
    model = graph_of(nodes, {"x": [1, 8]}, outputs, {"v": random(8, 4), "w": random(8, 70)})
    run_passes(model, [ChunkHead(max_columns=64)])
    assert [value.name for value in model.graph.outputs] == ["next_hidden", "logits_0", "logits_1", "last"]


def clipped_head(weight: np.ndarray, source: str = "x") -> ir.Model:
    """logits = clip(`source` W)."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["bent"]),
        helper.make_node("MatMul", [source, "w"], ["product"], name="head"),
        helper.make_node("Clip", ["product", "low", "high"], ["logits"], name="bound"),
    ]
    constants = {"w": weight, "low": np.float32(-0.75), "high": np.float32(0.5)}
    return graph_of(nodes, {"x": [1, 1, 2, 8]}, {"logits": [1, 1, 2, weight.shape[1]]}, constants)


def test_every_chunk_is_clipped_as_the_whole() -> None:
    weight, feed = random(8, 100), {"x": random(1, 1, 2, 8, seed=1)}
    whole = run_reference(clipped_head(weight), feed)["logits"]
    np.testing.assert_allclose(whole, np.clip(feed["x"] @ weight, -0.75, 0.5), atol=1e-5)
    model = run_passes(clipped_head(weight), [ChunkHead(max_columns=64)])
    assert [value.name for value in model.graph.outputs] == ["logits_0", "logits_1"]
    assert [list(value.shape or ()) for value in model.graph.outputs] == [[1, 1, 2, 64], [1, 1, 2, 36]]
    assert [node.outputs[0].name for node in nodes_of(model, "MatMul")] == ["product.0", "product.1"]
    assert len(nodes_of(model, "Clip")) == 2
    for run in (run_reference, run_ort):
        result = run(model, feed)
        np.testing.assert_allclose(np.concatenate([result["logits_0"], result["logits_1"]], -1), whole, atol=1e-5)


def test_a_clip_behind_something_else() -> None:
    model = clipped_head(random(8, 100))
    bound, bent = nodes_of(model, "Clip")[0], nodes_of(model, "Tanh")[0].outputs[0]
    bound.replace_input_with(0, bent)
    with pytest.raises(PassError, match="'logits' is not produced by a MatMul with a constant matrix"):
        run_passes(model, [ChunkHead()])


def test_needs_the_output_layer() -> None:
    with pytest.raises(PassError, match="ChunkHead failed: no graph output 'logits'"):
        run_passes(linear_graph(random(8, 20), "scores"), [ChunkHead()])
