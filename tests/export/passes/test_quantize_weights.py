"""The stored codes, their packing and their axis, against quant, onnx's own packer and numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.quantize_weights import QuantizeWeights
from quant.dtypes import INT2, INT4, INT8, INT16, UINT8, IntegerType
from quant.weights import Clip, QuantizedWeight, quantize_weight

from .builders import linear_graph, nodes_of, random, run_ort, run_reference

if TYPE_CHECKING:
    from pathlib import Path

TYPES = [(INT4, TensorProto.INT4), (INT8, TensorProto.INT8)]


def quantized(weight: np.ndarray, dtype: IntegerType) -> ir.Model:
    return run_passes(linear_graph(weight, "y"), [QuantizeWeights(dtype)])


def initializers(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in proto.graph.initializer}


@pytest.mark.parametrize(("dtype", "storage"), TYPES)
@pytest.mark.parametrize("shape", [(8, 8), (16, 6), (5, 7)])
def test_stored_codes_equal_quant_and_onnx_packing(
    tmp_path: Path, dtype: IntegerType, storage: int, shape: tuple[int, int]
) -> None:
    weight = random(*shape)
    ir.save(quantized(weight, dtype), tmp_path / "m.onnx")
    stored = initializers(onnx.load(str(tmp_path / "m.onnx")))
    wanted = quantize_weight(torch.from_numpy(weight.T.copy()), dtype, Clip.MSE)
    codes = wanted.codes.numpy().T
    assert stored["w.codes"].data_type == storage
    assert list(stored["w.codes"].dims) == list(shape)
    np.testing.assert_array_equal(numpy_helper.to_array(stored["w.codes"]).astype(np.int8), codes)
    theirs = helper.make_tensor("x", storage, shape, np.ascontiguousarray(codes).ravel().tolist())
    reference = numpy_helper.from_array(numpy_helper.to_array(theirs))
    assert stored["w.codes"].raw_data == reference.raw_data
    assert len(reference.raw_data) == -(-codes.size * dtype.bits // 8)
    np.testing.assert_array_equal(numpy_helper.to_array(stored["w.scale"]), wanted.scale.numpy().ravel())
    assert not numpy_helper.to_array(stored["w.zero"]).astype(np.int8).any()
    assert stored["w.zero"].data_type == storage


def test_first_code_is_in_the_low_nibble() -> None:
    given = QuantizedWeight(torch.tensor([[1, 2, 3, -1]], dtype=torch.int8), torch.ones(1, 1), INT4)
    model = run_passes(linear_graph(random(4, 1), "y"), [QuantizeWeights(INT4, {"w": given})])
    assert initializers(ir.to_proto(model))["w.codes"].raw_data.hex() == "21f3"


@pytest.mark.parametrize(("dtype", "storage"), TYPES)
def test_square_weight_is_scaled_per_output_column(dtype: IntegerType, storage: int) -> None:
    """Row 8: with the axis missing or wrong, a square weight gives wrong numbers and no error."""
    codes = torch.from_numpy(np.random.default_rng(0).integers(-8, 8, (8, 8)).astype(np.int8))
    scale = torch.arange(1.0, 9.0)[:, None]
    given = QuantizedWeight(codes, scale, dtype)
    model = run_passes(linear_graph(random(8, 8), "y"), [QuantizeWeights(dtype, {"w": given})])
    (node,) = nodes_of(model, "DequantizeLinear")
    assert node.attributes["axis"].as_int() == 1
    x = random(1, 1, 1, 8, seed=1)
    wanted = x @ (codes.numpy() * scale.numpy()).T
    wrong = x @ (codes.numpy() * scale.numpy().T).T
    result = run_ort(model, {"x": x})["y"]
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-4)
    assert np.abs(result - wrong).max() > 1


@pytest.mark.parametrize("dtype", [INT4, INT8])
def test_graph_computes_with_the_rounded_weight(dtype: IntegerType) -> None:
    weight, x = random(24, 10), random(1, 1, 1, 24, seed=1)
    graph_pass = QuantizeWeights(dtype)
    model = run_passes(linear_graph(weight, "y"), [graph_pass])
    rounded = graph_pass.quantized["w"].dequantize().numpy().T
    for run in (run_reference, run_ort):
        np.testing.assert_allclose(run(model, {"x": x})["y"], x @ rounded, atol=1e-5)
    assert list(graph_pass.quantized) == ["w"]
    assert "w" not in model.graph.initializers  # the floats are gone


@pytest.mark.parametrize("column", [np.zeros(16), np.full(16, 2e-7), np.full(16, -1e-6)], ids=["zero", "2e-7", "-1e-6"])
def test_empty_and_tiny_channels(column: np.ndarray) -> None:
    weight = random(16, 4)
    weight[:, 2] = column
    stored = initializers(ir.to_proto(quantized(weight, INT4)))
    scale = numpy_helper.to_array(stored["w.scale"])
    assert np.isfinite(scale).all()
    assert (scale > 0).all()
    result = run_ort(quantized(weight, INT4), {"x": np.ones((1, 1, 1, 16), np.float32)})["y"]
    assert result[..., 2].item() == pytest.approx(column.sum(), rel=1e-3)


@pytest.mark.parametrize("dtype", [INT2, UINT8, INT16, IntegerType("uint4", 4, False)])
def test_forms_that_htp_refuses_or_misreads(dtype: IntegerType) -> None:
    with pytest.raises(PassError, match=f"QuantizeWeights failed: weights of type {dtype.name} have no proved form"):
        quantized(random(8, 8), dtype)


def test_dynamic_second_operand_is_left_alone() -> None:
    node = helper.make_node("MatMul", ["x", "y"], ["z"])
    from .builders import graph_of

    model = graph_of([node], {"x": [1, 4], "y": [4, 3]}, {"z": [1, 3]}, {})
    assert QuantizeWeights(INT4)(model).modified is False


def test_postcondition_names_the_node() -> None:
    class Lazy(QuantizeWeights):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            return ir.passes.PassResult(model, modified=False)

    with pytest.raises(PassError, match=r"Lazy failed: float weights are left in \['linear'\]"):
        run_passes(linear_graph(random(8, 8)), [Lazy(INT4)])
