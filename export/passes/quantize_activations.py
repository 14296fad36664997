"""y  ->  DequantizeLinear(QuantizeLinear(y))  after every operator, and for every constant operand

Types and parameters come per range owner from an ActivationScheme. Graph inputs are dequantised where they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import add_initializer, drop_unused_initializers, float_values, is_constant, name_of
from export.passes.tie_ranges import RANGE_OWNER
from quant.affine import AffineParams, choose_asymmetric, quantize
from quant.dtypes import UINT16

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATA_TYPES = {
    "uint8": ir.DataType.UINT8,
    "int8": ir.DataType.INT8,
    "uint16": ir.DataType.UINT16,
    "int16": ir.DataType.INT16,
}


class QuantizeActivations(InPlacePass):
    """Insert Q/DQ pairs with the parameters of each value's range owner."""

    def __init__(self, params: Mapping[str, AffineParams]) -> None:
        super().__init__()
        self.params = params

    def requires(self, model: ir.Model) -> None:
        values = [value for value in float_values(model.graph) if not _is_dequantized(value)]
        untied = [name_of(value) for value in values if RANGE_OWNER not in value.metadata_props]
        if untied:
            raise PassError(f"values without a range owner (run TieRanges first): {untied[:5]}")
        owners = {value.metadata_props[RANGE_OWNER] for value in values}
        missing = sorted(owners - self.params.keys())
        if missing:
            raise PassError(f"no activation range for {missing}: calibrate this very graph")

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        for value in list(float_values(graph)):
            if not _is_dequantized(value):
                self._quantize_value(graph, value)
        constants: dict[str, ir.Value] = {}
        for node in list(graph):
            for index, operand in _float_operands(node):
                if is_constant(operand):
                    name = name_of(operand)
                    if name not in constants:
                        constants[name] = _quantized_constant(graph, node, operand)
                    node.replace_input_with(index, constants[name])
        drop_unused_initializers(graph)
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        for node in model.graph:
            bare = [v for _, v in _float_operands(node) if not _is_dequantized(v)]
            if bare:
                raise PassError(f"{node.op_type} {node.name} reads floats: {[name_of(v) for v in bare]}")

    def _quantize_value(self, graph: ir.Graph, value: ir.Value) -> None:
        params = self.params[value.metadata_props[RANGE_OWNER]]
        readers = list(value.uses())
        scale, zero = _parameters(graph, value.metadata_props[RANGE_OWNER], params)
        quantized = _value(f"{name_of(value)}.q", value.shape, _DATA_TYPES[params.dtype.name])
        restored = _value(f"{name_of(value)}.dq", value.shape, ir.DataType.FLOAT)
        quantize_node = ir.node("QuantizeLinear", [value, scale, zero], outputs=[quantized], name=quantized.name)
        restore = ir.node("DequantizeLinear", [quantized, scale, zero], outputs=[restored], name=restored.name)
        producer = value.producer()
        if producer is None:
            graph.insert_before(graph[0], [quantize_node, restore])
        else:
            graph.insert_after(producer, [quantize_node, restore])
        for node, index in readers:
            node.replace_input_with(index, restored)
        if value.is_graph_output():
            graph.outputs[list(graph.outputs).index(value)] = restored


def _float_operands(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """Index and value of the floats that a node computes with; scales of codes are none of them."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return []
    operands = node.inputs[:1] if node.op_type == "MatMulNBits" else node.inputs
    return [(i, v) for i, v in enumerate(operands) if v is not None and v.dtype == ir.DataType.FLOAT]


def _quantized_constant(graph: ir.Graph, reader: ir.Node, operand: ir.Value) -> ir.Value:
    assert operand.const_value is not None
    array = torch.from_numpy(np.array(operand.const_value.numpy(), dtype=np.float32))
    params = choose_asymmetric(array.min(), array.max(), UINT16)
    codes = quantize(array, params).numpy().astype(np.uint16)
    name = name_of(operand)
    source = add_initializer(graph, f"{name}.codes", ir.tensor(codes))
    output = _value(f"{name}.dq", operand.shape, ir.DataType.FLOAT)
    inputs = [source, *_parameters(graph, name, params)]
    graph.insert_before(reader, ir.node("DequantizeLinear", inputs, outputs=[output], name=f"{name}.dq"))
    return output


def _parameters(graph: ir.Graph, owner: str, params: AffineParams) -> tuple[ir.Value, ir.Value]:
    scale_name, zero_name = f"{owner}.scale", f"{owner}.zero"
    if scale_name in graph.initializers:
        return graph.initializers[scale_name], graph.initializers[zero_name]
    scale = np.asarray(params.scale.item(), dtype=np.float32)
    zero = np.asarray(params.zero_point.item(), dtype=_DATA_TYPES[params.dtype.name].numpy())
    return add_initializer(graph, scale_name, ir.tensor(scale)), add_initializer(graph, zero_name, ir.tensor(zero))


def _value(name: str, shape: ir.Shape | None, data_type: ir.DataType) -> ir.Value:
    return ir.Value(name=name, shape=shape, type=ir.TensorType(data_type))


def _is_dequantized(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"
