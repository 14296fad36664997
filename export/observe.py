"""Write graphs and watch them: every value of a float graph as an output, and the ranges that it takes.

Masks are not watched, and of scores plus mask only what the mask lets pass: what it hides says nothing of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from export.activation_params import masked_sums, owners_of
from export.engines.cpu import FloatGraph
from export.errors import ExportError
from export.graphs.mtp import KINDS
from export.passes import run_passes
from export.passes.common import MOVES, float_values, name_of
from export.passes.fold_clips import FoldClips
from export.passes.tie_ranges import TieRanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from export.activation_params import Range
    from export.engines.graph_io import Feed

MASKS = frozenset(f"mask_{kind}" for kind in KINDS)


def save_graph(model: ir.Model, path: Path) -> None:
    """Write the model with its weights in `<name>.data` beside it, named relatively."""
    ir.save(model, path, external_data=f"{path.name}.data")


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

    def open(self) -> FloatGraph:
        """On one thread: the last bits of a matrix product may depend on their number."""
        return FloatGraph(self.path, threads=1)

    def seen(self, feed: Feed, result: Feed) -> Iterator[tuple[str, np.ndarray]]:
        """What one pass shows of every value; a value that the masks hide whole is left out."""
        for name, array in (*feed.items(), *result.items()):
            if name in MASKS:
                continue
            if name in self.sums:
                array = array[np.broadcast_to(feed[self.sums[name]] == 0, array.shape)]
            if array.size:
                yield name, array


def save_watched(model: ir.Model, path: Path, ties: Sequence[Sequence[str]] = ()) -> WatchedGraph:
    """Write `model` with every intermediate value as a further output, and tie its ranges as its quantisation will.

    Logits are tied, and whatever `ties` name. Raises ExportError for a graph that moves masked scores about.
    """
    sums, limits = masked_sums(model.graph), _limits(model.graph)
    for value in float_values(model.graph):
        if name_of(value) in sums and any(node.op_type in MOVES for node, _ in value.uses()):
            raise ExportError(f"{value.name!r}, masked scores, is moved; what the mask hides cannot be told behind it")
    _save_observed(model, path)
    tied = model.clone()
    logits = [name_of(value) for value in tied.graph.outputs if name_of(value).startswith("logits_")]
    run_passes(tied, [FoldClips(), TieRanges([*ties, logits] if logits else ties)])
    return WatchedGraph(path, sums, owners_of(tied.graph), limits)


class RangeRecorder:
    """Runs a watched graph and keeps the extremes of every value."""

    def __init__(self, watched: WatchedGraph) -> None:
        self._watched, self._graph = watched, watched.open()
        self.inputs = self._graph.inputs
        self.ranges: dict[str, Range] = {}

    def run(self, feed: Feed) -> Feed:
        """One pass; `ranges` grow."""
        result = self._graph.run(feed)
        for name, array in self._watched.seen(feed, result):
            low, high = float(np.min(array)), float(np.max(array))
            old = self.ranges.get(name, (low, high))
            self.ranges[name] = (min(low, old[0]), max(high, old[1]))
        return result


def _save_observed(model: ir.Model, path: Path) -> None:
    outputs = list(model.graph.outputs)
    known = {name_of(value) for value in outputs}
    model.graph.outputs.extend(
        value for value in float_values(model.graph) if value.producer() is not None and name_of(value) not in known
    )
    save_graph(model, path)
    while len(model.graph.outputs) > len(outputs):
        model.graph.outputs.pop()


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
