"""The traced graph: its operators, its names, its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from export.engines.cpu import FloatGraph
from export.engines.graph_io import joined_logits
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import MtpInputs
from export.graphs.trace import OPSET

from ..tiny import KEEP, WINDOW, TinyHead, last_rows, random_state, run_torch, run_transformers

if TYPE_CHECKING:
    from pathlib import Path

PROVED = {
    "RMSNormalization", "Gelu", "MatMul", "Reshape", "Transpose", "Split", "Concat", "Mul", "Add", "Softmax",
}  # fmt: skip


@pytest.fixture(scope="module")
def graph(traced: bytes) -> ir.Graph:
    model = ir.from_proto(onnx.load_from_string(traced))
    assert model.opset_imports[""] == OPSET == 23
    return model.graph


def test_only_proved_operators(graph: ir.Graph) -> None:
    assert {node.op_type for node in graph} <= PROVED
    assert {node.domain for node in graph} == {""}


def test_norms_and_gelu_stay_whole(graph: ir.Graph) -> None:
    operators = [node.op_type for node in graph]
    assert operators.count("RMSNormalization") == 4 * 5 + 1
    assert operators.count("Gelu") == operators.count("Softmax") == 4
    gelus = [node for node in graph if node.op_type == "Gelu"]
    assert {node.attributes["approximate"].as_string() for node in gelus} == {"tanh"}


def test_boundary_has_the_given_names_and_shapes(graph: ir.Graph, tiny: TinyHead) -> None:
    shapes = {value.name: tuple(value.shape) for value in graph.inputs if value.shape is not None}
    assert shapes == MtpInputs(tiny.config, WINDOW).shapes()
    assert [value.name for value in graph.outputs] == ["next_hidden", "logits"]


@pytest.fixture(scope="module")
def float_graph(float_onnx: Path) -> FloatGraph:
    assert {node.op_type for node in ir.load(float_onnx).graph} <= PROVED
    return FloatGraph(float_onnx)


@pytest.mark.parametrize("position", [1, 12, 30])
def test_float_graph_equals_torch_and_transformers(tiny: TinyHead, float_graph: FloatGraph, position: int) -> None:
    state = random_state(tiny.config, position)
    builder = FeedBuilder(tiny.config, WINDOW)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    result = float_graph.run(feed)
    seen = last_rows(state, {"sliding": 8, "full": 8})
    for hidden, logits in (run_torch(tiny.head, feed), run_transformers(tiny.model, seen, position)):
        np.testing.assert_allclose(result["next_hidden"].ravel(), hidden, atol=1e-4)
        np.testing.assert_allclose(joined_logits(result).ravel(), logits[KEEP], atol=1e-4)
