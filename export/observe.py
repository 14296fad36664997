"""Write graphs and watch them: every value of a float graph as an output, and the ranges that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from export.passes.common import float_values, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from export.activation_params import Range
    from export.engines.cpu import FloatGraph
    from export.engines.graph_io import Feed


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


class RangeRecorder:
    """A graph that watches its feeds and all its outputs: with `save_observed`, every value."""

    def __init__(self, graph: FloatGraph) -> None:
        self._graph = graph
        self.inputs = graph.inputs
        self.ranges: dict[str, Range] = {}

    def run(self, feed: Feed) -> Feed:
        """One pass; `ranges` grow."""
        result = self._graph.run(feed)
        for name, array in (*feed.items(), *result.items()):
            low, high = float(np.min(array)), float(np.max(array))
            old = self.ranges.get(name, (low, high))
            self.ranges[name] = (min(low, old[0]), max(high, old[1]))
        return result
