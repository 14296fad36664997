"""Watching a graph: its values as outputs, and the range of each over all runs, against numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper

from export.calibrating.watch import Watcher
from export.engines.cpu import cpu_session
from export.observe import RangeRecorder, save_graph, save_watched

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
    recorder = RangeRecorder(save_watched(model, tmp_path / "observed.onnx"))
    assert [value.name for value in model.graph.outputs] == ["y"]
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


@pytest.mark.parametrize("observer", [RangeRecorder, Watcher])
def test_a_watched_graph_runs_on_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observer: type[RangeRecorder] | type[Watcher]
) -> None:
    """Alike for an export's own calibration and for one apart; the last bits may depend on it."""
    opened = []

    def open_session(model: Path, threads: int = 0) -> Any:
        opened.append(threads)
        return cpu_session(model, threads)

    monkeypatch.setattr("export.engines.cpu.cpu_session", open_session)
    observer(save_watched(small_model(), tmp_path / "observed.onnx")).run({"x": random(1, 16)})
    assert opened == [1]


def test_both_observers_see_the_same(tmp_path: Path) -> None:
    """Scores under a mask, in which whole passes are hidden: none of the mask's numbers, nor what lies behind it."""
    nodes = [helper.make_node("Add", ["scores", "mask_full"], ["sum"]), helper.make_node("Tanh", ["sum"], ["y"])]
    watched = save_watched(
        graph_of(nodes, {"scores": [2, 8], "mask_full": [1, 8]}, {"y": [2, 8]}, {}), tmp_path / "observed.onnx"
    )
    recorder, watcher = RangeRecorder(watched), Watcher(watched)
    visible = []
    for seed, first_visible in enumerate((0, 3, 8)):
        mask = np.zeros((1, 8), np.float32)
        mask[:, :first_visible] = -100.0
        scores = random(2, 8, seed=seed)
        visible.append(scores[:, mask[0] == 0])
        for observer in (recorder, watcher):
            observer.run({"scores": scores, "mask_full": mask})
    found = np.concatenate([part.ravel() for part in visible])
    assert recorder.ranges["sum"] == watcher.tensors["sum"].bounds == (found.min(), found.max())
    assert recorder.ranges == {name: tensor.bounds for name, tensor in watcher.tensors.items()}
    assert recorder.ranges.keys() == {"scores", "sum", "y"}
