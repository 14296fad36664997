"""Errors of the helpers that passes share."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from export.errors import PassError
from export.passes.common import (
    add_initializer,
    constant_shape,
    drop_unused_initializers,
    float_values,
    matmul_producing,
    name_of,
    static_shape,
    weight_matmuls,
)

from .builders import graph_of, linear_graph, random


def test_an_initializer_name_is_given_once() -> None:
    model = linear_graph(random(4, 4))
    with pytest.raises(PassError, match="initializer 'w' exists already"):
        add_initializer(model.graph, "w", ir.tensor(random(2, 2)))


def test_only_unread_initializers_go() -> None:
    model = linear_graph(random(4, 4))
    add_initializer(model.graph, "spare", ir.tensor(random(2, 2)))
    drop_unused_initializers(model.graph)
    assert list(model.graph.initializers) == ["w"]


def test_a_matrix_is_two_dimensional() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = graph_of([node], {"x": [2, 1, 4]}, {"y": [2, 1, 3]}, {"w": random(2, 4, 3)})
    assert weight_matmuls(model.graph) == []


def test_static_shape_refuses_unknown_sizes() -> None:
    assert static_shape(ir.Value(name="v", shape=ir.Shape([1, 3]))) == (1, 3)
    for shape in (None, ir.Shape([1, "n"])):
        with pytest.raises(PassError, match="value 'v' has no fixed shape"):
            static_shape(ir.Value(name="v", shape=shape))


def test_float_values_are_activations() -> None:
    """Dequantised activations count, a dequantised weight does not, nor does anything of integers."""
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("QuantizeLinear", ["product", "one", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["restored"]),
        helper.make_node("Tanh", ["restored"], ["y"]),
    ]
    constants = {
        "codes": np.zeros((4, 3), np.int8),
        "scale": np.ones(3, np.float32),
        "one": np.float32(1),
        "zero": np.uint16(0),
    }
    model = graph_of(nodes, {"x": [2, 4]}, {"y": [2, 3]}, constants)
    assert [name_of(value) for value in float_values(model.graph)] == ["x", "product", "restored", "y"]


def test_the_shape_of_a_constant_is_known_without_its_numbers() -> None:
    def refuse() -> ir.TensorProtocol:
        raise AssertionError("the numbers were read")

    lazy = ir.LazyTensor(refuse, dtype=ir.DataType.FLOAT, shape=ir.Shape((5, 7)), name="w")
    assert constant_shape(ir.Value(name="w", const_value=lazy)) == (5, 7)


@pytest.mark.parametrize("clipped", [False, True])
def test_the_product_behind_an_output(clipped: bool) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p" if clipped else "y"], name="product")]
    if clipped:
        nodes.append(helper.make_node("Clip", ["p", "low", "high"], ["y"]))
    bounds = {"low": np.float32(-1), "high": np.float32(1)}
    model = graph_of(nodes, {"x": [2, 4]}, {"y": [2, 3]}, {"w": random(4, 3), **bounds})
    assert matmul_producing(model.graph, "y").name == "product"


def test_unnamed_value() -> None:
    with pytest.raises(PassError, match="has no name"):
        name_of(ir.Value())
