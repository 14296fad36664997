"""Graphs on ONNX Runtime's CPU provider, with every graph optimisation off: what is written is what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime as ort

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from export.engines.graph_io import Boundary, Feed


def cpu_session(model: Path | bytes, threads: int = 0) -> Any:
    """A session that neither fuses nor folds; `threads` 0 leaves the choice to ONNX Runtime."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    # In the order of the file. With many outputs the default order dequantises all weights first and holds them.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.log_severity_level = 3
    return ort.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )


class FloatGraph:
    """A float graph: feed and result as they are."""

    def __init__(self, model: Path | bytes, threads: int = 0) -> None:
        self._session = cpu_session(model, threads)
        self._names = [output.name for output in self._session.get_outputs()]
        self.inputs = tuple(value.name for value in self._session.get_inputs())

    def run(self, feed: Feed) -> Feed:
        return dict(zip(self._names, self._session.run(None, feed), strict=True))


class QuantizedGraph:
    """A QDQ graph with an integer boundary; counts nothing as float outside it."""

    def __init__(self, session: Any, boundary: Boundary) -> None:
        self._session, self.boundary = session, boundary
        self._names = [tensor.name for tensor in boundary.outputs]

    def run(self, feed: Feed) -> Feed:
        return self.boundary.decode(self.run_codes(self.boundary.encode(feed)))

    def run_codes(self, codes: Feed) -> Sequence[Any]:
        """Integer feed -> integer outputs in the boundary's order."""
        outputs: Sequence[Any] = self._session.run(self._names, codes)
        return outputs
