"""Names come from the module and the operator, not from the order of tracing."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from export.engines.cpu import FloatGraph
from export.errors import PassError
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import MtpInputs
from export.passes import run_passes
from export.passes.common import float_values, name_of, weight_matmuls
from export.passes.fold_transposes import FoldTransposes
from export.passes.name_values import NameValues

from ..tiny import TinyHead, random_state, run_torch


@pytest.fixture(scope="module")
def named(traced: bytes) -> ir.Model:
    return run_passes(ir.from_proto(onnx.load_from_string(traced)), [FoldTransposes(), NameValues()])


def test_weights_carry_the_modules_names_and_numbers(named: ir.Model, tiny: TinyHead) -> None:
    parameters = {name: p for name, p in tiny.head.named_parameters() if p.dim() == 2}
    found = {}
    for node in weight_matmuls(named.graph):
        weight = node.inputs[1]
        assert weight is not None
        assert weight.const_value is not None
        found[name_of(weight)] = weight.const_value.numpy()
    assert found.keys() == parameters.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array.T, parameters[name].detach().numpy())


def test_values_carry_module_and_operator(named: ir.Model) -> None:
    names = [name_of(value) for value in float_values(named.graph)]
    assert len(names) == len(set(names))
    for layer in range(4):
        for stem in ("mlp.up_proj", "mlp.gelu", "self_attn.softmax", "input_layernorm", "self_attn.add#2"):
            assert f"layers.{layer}.{stem}" in names
    operators = {n.op_type for n in named.graph if name_of(n.outputs[0]).endswith("self_attn.softmax")}
    assert operators == {"Softmax"}


def test_boundary_keeps_its_names_and_numbers(named: ir.Model, tiny: TinyHead) -> None:
    assert [v.name for v in named.graph.inputs] == list(MtpInputs(tiny.config, 8).shapes())
    assert [v.name for v in named.graph.outputs] == ["next_hidden", "logits"]
    state = random_state(tiny.config, 5)
    builder = FeedBuilder(tiny.config, 8)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    result = FloatGraph(ir.to_proto(named).SerializeToString()).run(feed)
    hidden, logits = run_torch(tiny.head, feed)
    np.testing.assert_allclose(result["next_hidden"].ravel(), hidden, atol=1e-5)
    np.testing.assert_allclose(result["logits"].ravel(), logits, atol=1e-5)


def test_names_given_twice_are_an_error(named: ir.Model) -> None:
    class Clash(NameValues):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            for node in list(model.graph)[:2]:
                node.outputs[0].name = "same"
            return ir.passes.PassResult(model, modified=True)

    copy = ir.from_proto(ir.to_proto(named))
    with pytest.raises(PassError, match=r"Clash failed: values share a name: \['same'\]"):
        run_passes(copy, [Clash()])
