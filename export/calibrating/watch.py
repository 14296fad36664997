"""Watching a float graph: statistics of all its values, without masks and without what they hide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration.observers import TensorObserver
from export.activation_params import masked_sums, owners_of
from export.engines.cpu import FloatGraph
from export.errors import ExportError
from export.graphs.mtp import KINDS
from export.observe import save_observed
from export.passes import run_passes
from export.passes.common import MOVES, float_values, name_of
from export.passes.fold_clips import FoldClips
from export.passes.tie_ranges import TieRanges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from export.activation_params import Range
    from export.engines.graph_io import Feed

MASKS = frozenset(f"mask_{kind}" for kind in KINDS)


@dataclass(frozen=True)
class WatchedGraph:
    """A float graph on disk, every value an output.

    sums: scores plus mask -> the mask. owners: value -> the first of those that share its range when the graph is
    quantised. limits: the bounds that clip a value, the narrowest where several do.
    """

    path: Path
    sums: Mapping[str, str]
    owners: Mapping[str, str]
    limits: Mapping[str, Range]


def save_watched(model: ir.Model, path: Path, ties: Sequence[Sequence[str]] = ()) -> WatchedGraph:
    """Write `model` to be watched, and tie its ranges as its quantisation will; the model is consumed.

    Logits are tied, and whatever `ties` name. Raises ExportError for a graph that moves masked scores about.
    """
    sums, limits = masked_sums(model.graph), _limits(model.graph)
    for value in float_values(model.graph):
        if name_of(value) in sums and any(node.op_type in MOVES for node, _ in value.uses()):
            raise ExportError(f"{value.name!r}, masked scores, is moved; what the mask hides cannot be told behind it")
    save_observed(model, path)
    logits = [name_of(value) for value in model.graph.outputs if name_of(value).startswith("logits_")]
    run_passes(model, [FoldClips(), TieRanges([*ties, logits] if logits else ties)])
    return WatchedGraph(path, sums, owners_of(model.graph), limits)


class Watcher:
    """Runs a watched graph and keeps statistics of every value but the masks; of masked sums, what a mask lets pass.

    Rows and slots that are padding hold zeros: they may widen a range to 0, which it holds in any case.
    """

    def __init__(self, watched: WatchedGraph) -> None:
        self._graph = FloatGraph(watched.path, threads=1)
        self._sums = watched.sums
        self.inputs = self._graph.inputs
        self.tensors: dict[str, TensorObserver] = {}

    def run(self, feed: Feed) -> Feed:
        """One pass; `tensors` take in its values."""
        result = self._graph.run(feed)
        for name, array in (*feed.items(), *result.items()):
            if name in MASKS:
                continue
            if name in self._sums:
                array = array[np.broadcast_to(feed[self._sums[name]] == 0, array.shape)]
            self.tensors.setdefault(name, TensorObserver()).observe(array)
        return result


def _limits(graph: ir.Graph) -> dict[str, Range]:
    limits: dict[str, Range] = {}
    for node in graph:
        if node.op_type == "Clip":
            value, low, high = node.inputs
            assert value is not None
            bounds = tuple(float(end.const_value.numpy()) for end in (low, high) if end and end.const_value)
            if len(bounds) == 2:
                known = limits.get(name_of(value), bounds)
                limits[name_of(value)] = max(bounds[0], known[0]), min(bounds[1], known[1])
    return limits
