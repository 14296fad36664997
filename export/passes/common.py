"""Small questions about a graph that several passes ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from export.errors import PassError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

MOVES = frozenset({"Reshape", "Transpose", "Slice", "Split", "Concat", "Squeeze", "Unsqueeze", "Expand"})
"""Operators that move numbers without changing them: input and output share their quantisation."""


def float_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Graph inputs and node outputs that hold floats, in graph order; a weight that is dequantised is none of them."""
    for value in graph.inputs:
        if value.dtype == ir.DataType.FLOAT:
            yield value
    for node in graph:
        if node.op_type != "DequantizeLinear" or not is_constant(node.inputs[0]):
            yield from (value for value in node.outputs if value.dtype == ir.DataType.FLOAT)


def name_of(value: ir.Value) -> str:
    """The value's name; an unnamed value in a finished graph is a defect."""
    if value.name is None:
        raise PassError(f"a value of node {value.producer()} has no name")
    return value.name


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer with known numbers."""
    return value is not None and value.is_initializer() and value.const_value is not None


def weight_matmuls(graph: ir.Graph) -> list[ir.Node]:
    """MatMul nodes whose second operand is a constant matrix [in, out]."""
    return [
        node
        for node in graph
        if node.op_type == "MatMul" and is_constant(node.inputs[1]) and _rank(node.inputs[1]) == 2
    ]


def constant_matrix(node: ir.Node) -> tuple[ir.Value, np.ndarray]:
    """The constant second operand of one of the `weight_matmuls`: the value and its numbers [in, out]."""
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    return weight, weight.const_value.numpy()


def constant_shape(value: ir.Value) -> tuple[int, ...]:
    """Shape of an initializer, without reading its numbers."""
    assert value.const_value is not None
    return tuple(int(size) for size in value.const_value.shape.numpy())


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """The value's shape; a shape that is unknown or not fixed is an error."""
    sizes = () if value.shape is None else tuple(size for size in value.shape if isinstance(size, int))
    if value.shape is None or len(sizes) != len(value.shape):
        raise PassError(f"value {value.name!r} has no fixed shape: {value.shape}")
    return sizes


def moved_inputs(node: ir.Node) -> list[ir.Value]:
    """The float inputs whose numbers a moving node passes on."""
    return [value for value in node.inputs if value is not None and value.dtype == ir.DataType.FLOAT]


def matmul_producing(graph: ir.Graph, output_name: str) -> ir.Node:
    """The constant-weight MatMul behind the graph output `output_name`, directly or with a Clip between."""
    for value in graph.outputs:
        if value.name == output_name:
            node = value.producer()
            if node is not None and node.op_type == "Clip" and node.inputs[0] is not None:
                node = node.inputs[0].producer()
            if node is not None and node in weight_matmuls(graph):
                return node
            raise PassError(f"graph output {output_name!r} is not produced by a MatMul with a constant matrix")
    raise PassError(f"no graph output {output_name!r}; outputs: {[value.name for value in graph.outputs]}")


def add_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A new initializer; a name already in use is an error."""
    if name in graph.initializers:
        raise PassError(f"initializer {name!r} exists already")
    value = ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.initializers[name] = value
    return value


def drop_unused_initializers(graph: ir.Graph) -> None:
    """Remove initializers that no node reads, which frees their memory."""
    unused = [name for name, value in graph.initializers.items() if not value.uses() and not value.is_graph_output()]
    for name in unused:
        del graph.initializers[name]


def _rank(value: ir.Value | None) -> int:
    return 0 if value is None or value.const_value is None else len(value.const_value.shape)
