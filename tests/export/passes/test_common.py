"""Errors of the helpers that passes share."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import helper

from export.errors import PassError
from export.passes.common import add_initializer, drop_unused_initializers, name_of, static_shape, weight_matmuls

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


def test_unnamed_value() -> None:
    with pytest.raises(PassError, match="has no name"):
        name_of(ir.Value())
