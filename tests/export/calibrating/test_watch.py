"""What a watched graph records: every value but masks, of masked scores only those that can be attended to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper

from export.calibrating.watch import Watcher
from export.errors import ExportError
from export.observe import save_watched

from ..passes.builders import graph_of, random

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir


def attention(moved: bool = False) -> ir.Model:
    """Softmax(scores + mask) clipped values, with a transposed copy; two heads, three rows, four keys."""
    nodes = [
        helper.make_node("Add", ["scores", "mask_full"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["shares"], axis=-1),
        helper.make_node("Clip", ["values", "low", "high"], ["clipped"], name="clip"),
        helper.make_node("MatMul", ["shares", "clipped"], ["y"]),
        helper.make_node("Transpose", ["y"], ["turned"], perm=[0, 1, 3, 2]),
    ]
    if moved:
        nodes[1] = helper.make_node("Softmax", ["again"], ["shares"], axis=-1)
        nodes.insert(1, helper.make_node("Transpose", ["sum"], ["again"], perm=[0, 1, 2, 3]))
    inputs = {"scores": [1, 2, 3, 4], "mask_full": [1, 1, 3, 4], "values": [1, 2, 4, 5]}
    bounds = {"low": np.float32(-0.75), "high": np.float32(0.5)}
    return graph_of(nodes, inputs, {"turned": [1, 2, 5, 3]}, bounds)


def feeds() -> list[dict[str, np.ndarray]]:
    """Two passes with masks of 0 and -100; scores behind the mask are far larger than all others."""
    made = []
    for seed in range(2):
        hidden = np.random.default_rng(seed).random((1, 1, 3, 4)) < 0.5
        hidden[..., 0] = False
        scores = random(1, 2, 3, 4, seed=seed)
        scores[np.broadcast_to(hidden, scores.shape)] = 40.0
        mask = np.where(hidden, -100.0, 0.0).astype(np.float32)
        made.append({"scores": scores, "mask_full": mask, "values": random(1, 2, 4, 5, seed=10 + seed)})
    return made


def test_masks_never_enter_a_range(tmp_path: Path) -> None:
    watcher = Watcher(save_watched(attention(), tmp_path / "observed.onnx"))
    for feed in feeds():
        watcher.run(feed)
    assert watcher.tensors.keys() == {"scores", "values", "sum", "shares", "clipped", "y", "turned"}
    visible = np.concatenate([f["scores"][np.broadcast_to(f["mask_full"] == 0, f["scores"].shape)] for f in feeds()])
    found = watcher.tensors["sum"]
    assert found.bounds == (visible.min(), visible.max())
    assert found.count == visible.size
    assert found.bounds[1] < 40 - 1


def test_other_values_are_numpys(tmp_path: Path) -> None:
    watcher = Watcher(save_watched(attention(), tmp_path / "observed.onnx"))
    wanted: dict[str, list[np.ndarray]] = {name: [] for name in ("scores", "values", "clipped", "y", "turned")}
    for feed in feeds():
        watcher.run(feed)
        total = (feed["scores"] + feed["mask_full"]).astype(np.float64)
        shares = np.exp(total - total.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        clipped = feed["values"].clip(-0.75, 0.5)
        y = shares @ clipped
        for name, array in (("scores", feed["scores"]), ("values", feed["values"]), ("clipped", clipped), ("y", y)):
            wanted[name].append(array)
        wanted["turned"].append(y)
    for name, arrays in wanted.items():
        array = np.stack(arrays)
        assert watcher.tensors[name].bounds == pytest.approx((array.min(), array.max()), rel=1e-5), name
        assert watcher.tensors[name].count == array.size


def test_ties_and_limits_are_those_of_the_quantised_graph(tmp_path: Path) -> None:
    watched = save_watched(attention(), tmp_path / "observed.onnx", [("scores", "values")])
    assert watched.owners["turned"] == watched.owners["y"] == "y"
    assert watched.owners["values"] == watched.owners["scores"] == "scores"
    assert watched.owners["sum"] == "sum"
    assert watched.limits == {"values": (-0.75, 0.5)}
    assert watched.sums == {"sum": "mask_full"}


def test_masked_scores_that_are_moved_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'sum', masked scores, is moved"):
        save_watched(attention(moved=True), tmp_path / "observed.onnx")
