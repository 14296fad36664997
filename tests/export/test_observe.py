"""Watching a graph: its values as outputs, and the range of each over all runs, against numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from export.engines.cpu import FloatGraph
from export.observe import RangeRecorder, save_graph, save_observed

from .passes.builders import graph_of, random

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir


def small_model() -> ir.Model:
    """y = tanh(x W) with a weight that is large enough for a file of its own."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Tanh", ["product"], ["y"])]
    return graph_of(nodes, {"x": [1, 16]}, {"y": [1, 8]}, {"w": random(16, 8)})


def test_weights_lie_beside_the_graph(tmp_path: Path) -> None:
    save_graph(small_model(), tmp_path / "a.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.data"]
    assert (tmp_path / "a.onnx.data").stat().st_size == 16 * 8 * 4
    tmp_path.rename(moved := tmp_path.with_name("moved"))
    loaded = onnx.load(str(moved / "a.onnx"))
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded.graph.initializer[0]), random(16, 8))


def test_ranges_of_every_value_over_all_runs(tmp_path: Path) -> None:
    model = small_model()
    save_observed(model, tmp_path / "observed.onnx")
    assert [value.name for value in model.graph.outputs] == ["y"]
    recorder = RangeRecorder(FloatGraph(tmp_path / "observed.onnx"))
    assert recorder.inputs == ("x",)
    feeds = [random(1, 16, seed=seed) for seed in range(4)]
    for feed in feeds:
        recorder.run({"x": feed})
    x = np.concatenate(feeds)
    product = x @ random(16, 8)
    wanted = {"x": x, "product": product, "y": np.tanh(product)}
    assert recorder.ranges.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(recorder.ranges[name], (values.min(), values.max()), rtol=1e-5)
    assert all(low < high for low, high in recorder.ranges.values())
