"""The boundary's conversion against onnx's own QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from export.engines.graph_io import Boundary, BoundaryTensor, joined_logits
from quant.errors import QuantError

ONNX_TYPES = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16,
}


def onnx_reference(tensor: BoundaryTensor, operator: str) -> ReferenceEvaluator:
    integer = ONNX_TYPES[tensor.dtype]
    source, target = (TensorProto.FLOAT, integer) if operator == "QuantizeLinear" else (integer, TensorProto.FLOAT)
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "s", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", source, tensor.shape)],
        [helper.make_tensor_value_info("y", target, tensor.shape)],
        [
            numpy_helper.from_array(np.float32(tensor.scale), "s"),
            numpy_helper.from_array(np.array(tensor.zero_point, tensor.dtype), "z"),
        ],
    )
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]))


@pytest.mark.parametrize(
    ("dtype", "zero_point"), [("uint8", 0), ("uint8", 128), ("int8", 0), ("uint16", 30000), ("int16", 0)]
)
@pytest.mark.parametrize("scale", [0.1, 0.0009765625, 0.37])
def test_encode_and_decode_equal_onnx(dtype: str, zero_point: int, scale: float) -> None:
    values = np.random.default_rng(0).normal(0, 40, (2, 500)).astype(np.float32)
    values[0, :20] = (np.arange(20) - 9.5) * scale  # ties: round half to even
    values[1, :2] = [1e5, -1e5]  # saturate
    tensor = BoundaryTensor("t", dtype, values.shape, float(np.float32(scale)), zero_point)
    codes = tensor.encode(values)
    (wanted,) = onnx_reference(tensor, "QuantizeLinear").run(None, {"x": values})
    assert codes.dtype == wanted.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(codes, wanted)
    (restored,) = onnx_reference(tensor, "DequantizeLinear").run(None, {"x": codes})
    np.testing.assert_array_equal(tensor.decode(codes), restored)


def test_wrong_shape_names_the_input() -> None:
    tensor = BoundaryTensor("hidden", "uint16", (1, 1, 1, 4), 0.1, 0)
    with pytest.raises(ValueError, match=r"input 'hidden' has shape \(4,\), the graph takes \(1, 1, 1, 4\)"):
        tensor.encode(np.zeros(4, np.float32))


def test_nan_is_an_error() -> None:
    with pytest.raises(QuantError, match="NaN"):
        BoundaryTensor("x", "int16", (1,), 0.1, 0).encode(np.array([np.nan], np.float32))


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("a", "c")])
def test_missing_and_unknown_names(names: tuple[str, ...]) -> None:
    boundary = Boundary(tuple(BoundaryTensor(n, "uint8", (1,), 1.0, 0) for n in ("a", "b")), ())
    with pytest.raises(ValueError, match="the graph takes"):
        boundary.encode({name: np.zeros(1, np.float32) for name in names})


def test_outputs_decode_by_order() -> None:
    boundary = Boundary((), (BoundaryTensor("a", "uint8", (1,), 0.5, 10), BoundaryTensor("b", "int16", (1,), 2.0, 0)))
    decoded = boundary.decode([np.array([12], np.uint8), np.array([-3], np.int16)])
    assert {name: array.tolist() for name, array in decoded.items()} == {"a": [1.0], "b": [-6.0]}
    with pytest.raises(ValueError, match="shorter"):
        boundary.decode([np.array([12], np.uint8)])


def test_chunks_join_by_number_not_by_text() -> None:
    chunks = {f"logits_{i}": np.full((1, 1, 1, 2), i) for i in (10, 2, 0, 1, *range(3, 10))}
    joined = joined_logits({**chunks, "next_hidden": np.zeros(3)})
    assert joined.ravel().tolist() == [i for i in range(11) for _ in range(2)]
