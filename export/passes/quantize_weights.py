"""MatMul(x, W)  ->  MatMul(x, DequantizeLinear(codes, scale, 0; axis = 1))

W [in, out] is a constant; codes are INT4 or INT8, one scale per output column, zero point 0: the only 4-bit form that
HTP takes as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import add_initializer, constant_matrix, drop_unused_initializers, name_of, weight_matmuls
from quant.weights import Clip, QuantizedWeight, quantize_weight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quant.dtypes import IntegerType

_STORAGE: dict[int, tuple[ir.DataType, np.dtype[np.generic]]] = {
    4: (ir.DataType.INT4, np.dtype(ml_dtypes.int4)),
    8: (ir.DataType.INT8, np.dtype(np.int8)),
}


class QuantizeWeights(InPlacePass):
    """Quantise every constant matrix to `dtype`, with the clip search unless codes are `given` by weight name."""

    def __init__(self, dtype: IntegerType, given: Mapping[str, QuantizedWeight] | None = None) -> None:
        super().__init__()
        self.dtype, self.given = dtype, given or {}
        self.quantized: dict[str, QuantizedWeight] = {}
        """What the pass stored, by weight name."""

    def requires(self, model: ir.Model) -> None:
        if self.dtype.bits not in _STORAGE or not self.dtype.signed:
            raise PassError(f"weights of type {self.dtype.name} have no proved form on HTP; use int4 or int8")

    def call(self, model: ir.Model) -> PassResult:
        nodes = weight_matmuls(model.graph)
        for node in nodes:
            weight, array = constant_matrix(node)
            name = name_of(weight)
            quantized = self.given.get(name) or self._quantize(array)
            self.quantized[name] = quantized
            node.replace_input_with(1, _dequantized(model.graph, node, name, quantized))
        drop_unused_initializers(model.graph)
        return PassResult(model, modified=bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        left = [node.name for node in weight_matmuls(model.graph)]
        if left:
            raise PassError(f"float weights are left in {left}")

    def _quantize(self, array: np.ndarray) -> QuantizedWeight:
        # [in, out] -> [out, in]: one row per output channel.
        rows = torch.from_numpy(np.ascontiguousarray(array.T, dtype=np.float32))
        return quantize_weight(rows, self.dtype, Clip.MSE)


def _dequantized(graph: ir.Graph, node: ir.Node, name: str, weight: QuantizedWeight) -> ir.Value:
    data_type, storage = _STORAGE[weight.dtype.bits]
    codes = np.ascontiguousarray(weight.codes.numpy().T).astype(storage)
    scale = weight.scale.numpy().reshape(-1)
    inputs = [
        add_initializer(graph, f"{name}.codes", ir.Tensor(codes, dtype=data_type)),
        add_initializer(graph, f"{name}.scale", ir.tensor(scale)),
        add_initializer(graph, f"{name}.zero", ir.Tensor(np.zeros(scale.shape, storage), dtype=data_type)),
    ]
    output = ir.Value(name=f"{name}.dequantized", shape=ir.Shape(codes.shape), type=ir.TensorType(ir.DataType.FLOAT))
    dequantize = ir.node("DequantizeLinear", inputs, {"axis": 1}, outputs=[output], name=f"{name}.dequantize")
    graph.insert_before(node, dequantize)
    return output
