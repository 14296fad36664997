"""Ranges of every float value of the step graph, over the chains that it drafts from recorded verifier states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from export.engines.cpu import FloatGraph
from export.passes.common import float_values, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from calibration.states import HeadState
    from export.engines.graph_io import Feed
    from export.mtp.chain import MtpChain
    from export.mtp.quantized_graph import Range


def save_graph(model: ir.Model, path: Path) -> None:
    """Write the model with its weights in `<name>.data` beside it, named relatively."""
    ir.save(model, path, external_data=f"{path.name}.data")


def save_observed(model: ir.Model, path: Path) -> None:
    """Write the float model with every intermediate value as a further output."""
    outputs = list(model.graph.outputs)
    known = {name_of(value) for value in outputs}
    model.graph.outputs.extend(
        value for value in float_values(model.graph) if value.producer() is not None and name_of(value) not in known
    )
    save_graph(model, path)
    while len(model.graph.outputs) > len(outputs):
        model.graph.outputs.pop()


def collect_ranges(observed: Path, chain: MtpChain, states: Iterable[HeadState]) -> dict[str, Range]:
    """Minimum and maximum of every float value while `chain` drafts from `states`.

    The attention mask is masked out of nothing: its own range and that of the sums it enters are bounded by -100.
    """
    recorder = _Recorder(FloatGraph(observed))
    for state in states:
        for _ in chain.run(recorder, state):
            pass
    return recorder.ranges


class _Recorder:
    """A step graph that watches its feeds and all its values."""

    def __init__(self, graph: FloatGraph) -> None:
        self._graph = graph
        self.ranges: dict[str, Range] = {}

    def run(self, feed: Feed) -> Feed:
        result = self._graph.run(feed)
        for name, array in (*feed.items(), *result.items()):
            low, high = float(np.min(array)), float(np.max(array))
            old = self.ranges.get(name, (low, high))
            self.ranges[name] = (min(low, old[0]), max(high, old[1]))
        return result
