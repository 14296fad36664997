"""Small QDQ models with the boundary of a head or an SLM: every output depends on every input, and on nothing else.

    caches    -> 16 bits -> one row -> MatMul ┐
    the rest  -> MatMul                       ├ Add -> Tanh -> MatMul for each output
    ...                                       ┘

Every tensor between has 16 bits, so that the HTP compiler takes the model whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

    from export.engines.graph_io import Boundary, BoundaryTensor

_FEATURES = 16
_SPAN = (16 / 65535, 32768)
"""Scale and zero point of what lies between: -8 to 8."""
_ONE = (2 / 65535, 32768)
_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
}


def write_graph(path: Path, boundary: Boundary, seed: int, weights: str | None = None) -> None:
    """Write the model; `weights` names a file beside it for what is larger than 256 bytes."""
    graph = _Graph(np.random.default_rng(seed))
    total = None
    for tensor in boundary.inputs:
        part = graph.contribution(tensor)
        total = part if total is None else graph.coded(graph.node("Add", total, part), *_SPAN)
    assert total is not None
    features = graph.coded(graph.node("Tanh", total), *_ONE)
    for tensor in boundary.outputs:
        graph.result(features, tensor)
    inputs, outputs = ([_info(tensor) for tensor in tensors] for tensors in (boundary.inputs, boundary.outputs))
    made = helper.make_graph(graph.nodes, "g", inputs, outputs, graph.initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    if weights is None:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, location=weights, size_threshold=256)


def _info(tensor: BoundaryTensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, _TYPES[tensor.dtype], tensor.shape)


@dataclass
class _Graph:
    """Nodes in the making. Names of values are given out; a value is a float between two QuantizeLinear."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: object) -> str:
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"n{len(self.nodes)}", **attributes))
        return output

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def params(self, scale: float, zero_point: int, dtype: str) -> tuple[str, str]:
        return self.constant(np.array(scale, np.float32)), self.constant(np.array(zero_point, dtype))

    def coded(self, value: str, scale: float, zero_point: int, dtype: str = "uint16") -> str:
        """Through codes and back."""
        params = self.params(scale, zero_point, dtype)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", value, *params), *params)

    def product(self, value: str, rows: int, columns: int, deviation: float) -> str:
        """With a random matrix of 8-bit codes."""
        codes = self.constant(self.rng.integers(-127, 128, (rows, columns)).astype(np.int8))
        weight = self.node("DequantizeLinear", codes, *self.params(deviation / 73, 0, "int8"))
        return self.node("MatMul", value, weight)

    def contribution(self, tensor: BoundaryTensor) -> str:
        """An input's share in the features [1, 1, rows or 1, features], of a deviation of about 0.4."""
        value = self.node("DequantizeLinear", tensor.name, *self.params(tensor.scale, tensor.zero_point, tensor.dtype))
        width, size = tensor.shape[-1], 1.5
        if tensor.name.startswith(("keys_", "values_", "past_")):
            width = int(np.prod(tensor.shape))
            own = (tensor.scale, tensor.zero_point, tensor.dtype)
            value = self.coded(self.node("Reshape", value, self.constant(np.array([1, 1, 1, width]))), *own)
            value = self.coded(value, 24 / 65535, 32768)
        elif tensor.name.startswith("mask_"):
            size = 60.0
        return self.coded(self.product(value, width, _FEATURES, 0.4 / size / width**0.5), *_SPAN)

    def result(self, features: str, tensor: BoundaryTensor) -> None:
        """An output out of the features."""
        deviation = 6.0 if tensor.name.startswith("logits") else 1.0
        deviation /= 0.6 * _FEATURES**0.5
        params = self.params(tensor.scale, tensor.zero_point, tensor.dtype)
        if not tensor.name.startswith("new_"):
            value = self.product(features, _FEATURES, tensor.shape[-1], deviation)
            self.node("QuantizeLinear", value, *params, output=tensor.name)
            return
        keys = tensor.name.startswith("new_keys")
        assert tensor.shape[1] == 1  # one head, so no transpose of heads and rows
        dim = tensor.shape[2 if keys else 3]
        value = self.coded(self.product(features, _FEATURES, dim, deviation), *_SPAN)
        if keys:
            value = self.coded(self.node("Transpose", value, perm=[0, 1, 3, 2]), *_SPAN)
        self.node("QuantizeLinear", value, *params, output=tensor.name)
