"""The traced graph: its operators, its names, its numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from export.engines.cpu import FloatGraph
from export.engines.graph_io import joined_logits
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import MtpInputs
from export.graphs.trace import OPSET, trace_module
from export.mtp.float_graph import build_float_graph

from ..tiny import TinyHead, random_state, run_torch, run_transformers

PROVED = {
    "RMSNormalization", "Gelu", "MatMul", "Reshape", "Transpose", "Split", "Concat", "Mul", "Add", "Softmax",
}  # fmt: skip
KEEP = np.array([0, 1, 5, 17, 106, 255, 299])


@pytest.fixture(scope="module")
def traced(tiny: TinyHead) -> ir.Model:
    return trace_module(tiny.head, MtpInputs(tiny.config, 16).shapes(), ["next_hidden", "logits"])


def test_only_proved_operators(traced: ir.Model) -> None:
    assert {node.op_type for node in traced.graph} <= PROVED
    assert {node.domain for node in traced.graph} == {""}
    assert traced.opset_imports[""] == OPSET == 23


def test_norms_and_gelu_stay_whole(traced: ir.Model) -> None:
    operators = [node.op_type for node in traced.graph]
    assert operators.count("RMSNormalization") == 4 * 5 + 1
    assert operators.count("Gelu") == operators.count("Softmax") == 4
    gelus = [node for node in traced.graph if node.op_type == "Gelu"]
    assert {node.attributes["approximate"].as_string() for node in gelus} == {"tanh"}


def test_boundary_has_the_given_names_and_shapes(traced: ir.Model, tiny: TinyHead) -> None:
    shapes = {value.name: tuple(value.shape) for value in traced.graph.inputs if value.shape is not None}
    assert shapes == MtpInputs(tiny.config, 16).shapes()
    assert [value.name for value in traced.graph.outputs] == ["next_hidden", "logits"]


@pytest.mark.parametrize("position", [1, 12, 30])
def test_float_graph_equals_torch_and_transformers(tiny: TinyHead, position: int) -> None:
    state = random_state(tiny.config, position)
    builder = FeedBuilder(tiny.config, 8)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    model = build_float_graph(tiny.head, KEEP, 8)
    assert {node.op_type for node in model.graph} <= PROVED
    result = FloatGraph(ir.to_proto(model).SerializeToString()).run(feed)
    seen = {kind: (array[:, -8:], state.values[kind][:, -8:]) for kind, array in state.keys.items()}
    cut = type(state)(
        0, position, state.embedding, state.hidden,
        {kind: pair[0] for kind, pair in seen.items()}, {kind: pair[1] for kind, pair in seen.items()},
    )  # fmt: skip
    for hidden, logits in (run_torch(tiny.head, feed), run_transformers(tiny.model, cut, position)):
        np.testing.assert_allclose(result["next_hidden"].ravel(), hidden, atol=1e-4)
        np.testing.assert_allclose(joined_logits(result).ravel(), logits[KEEP], atol=1e-4)


def test_many_rows_transpose_instead_of_reshape() -> None:
    """Rows and heads swap by a reshape for one row only; more rows need the real thing, also in a traced graph."""

    class Swap(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            from export.graphs.blocks import _swap_rows_and_heads

            return _swap_rows_and_heads(x)

    for shape in ((1, 1, 4, 3), (1, 5, 4, 3)):
        model = trace_module(Swap(), {"x": shape}, ["y"])
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        result = FloatGraph(ir.to_proto(model).SerializeToString()).run({"x": x})["y"]
        np.testing.assert_array_equal(result, x.swapaxes(1, 2))
