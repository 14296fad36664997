"""Q/DQ pairs behind every operator, and no float operand that does not come out of one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.common import name_of
from export.passes.quantize_activations import QuantizeActivations
from export.passes.quantize_boundary import QuantizeBoundary
from export.passes.store_codes import CodedWeight, StoreCodes
from export.passes.tie_ranges import TieRanges
from quant.affine import AffineParams, choose_asymmetric, choose_symmetric
from quant.dtypes import INT8, INT16, UINT8, UINT16, IntegerType

from .builders import Arrays, graph_of, nodes_of, random, run_ort, run_reference

OWNERS = ("x", "k", "scaled", "scores", "y")


def attention_like() -> ir.Model:
    """scaled = x * 0.7;  scores = scaled k;  y = tanh(scores reshaped)."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "k"], ["scores"], name="product"),
        helper.make_node("Reshape", ["scores", "shape"], ["flat"]),
        helper.make_node("Tanh", ["flat"], ["y"], name="bend"),
    ]
    constants = {"factor": np.array([0.7], np.float32), "shape": np.array([6])}
    return graph_of(nodes, {"x": [2, 4], "k": [4, 3]}, {"y": [6]}, constants)


def params(**changes: AffineParams) -> dict[str, AffineParams]:
    wide = {name: choose_asymmetric(torch.tensor(-4.0), torch.tensor(5.0), UINT16) for name in OWNERS}
    return {**wide, "k": choose_symmetric(torch.tensor(4.0), INT16), **changes}


def quantized(activation: dict[str, AffineParams], *, boundary: bool = False) -> ir.Model:
    passes = [TieRanges(), QuantizeActivations(activation), *([QuantizeBoundary()] if boundary else [])]
    return run_passes(attention_like(), passes)


def onnx_round_trip(x: np.ndarray, p: AffineParams) -> np.ndarray:
    """ONNX's definition of QuantizeLinear and DequantizeLinear, written out in numpy."""
    scale, zero = np.float32(p.scale.item()), p.zero_point.item()
    codes = np.clip(np.rint(x / scale) + zero, p.dtype.qmin, p.dtype.qmax)
    return ((codes - zero) * scale).astype(np.float32)


def test_numbers_are_rounded_behind_every_operator() -> None:
    p, feed = params(), {"x": random(2, 4), "k": random(4, 3, seed=1)}
    factor = np.float32(0.7)  # the constant's own range is [0, 0.7]: its code is the largest, its value nearly exact
    scaled = onnx_round_trip(onnx_round_trip(feed["x"], p["x"]) * factor, p["scaled"])
    scores = onnx_round_trip(scaled @ onnx_round_trip(feed["k"], p["k"]), p["scores"])
    wanted = onnx_round_trip(np.tanh(scores.reshape(6)), p["y"])
    for run in (run_reference, run_ort):
        result = run(quantized(p), feed)["y.dq"]
        # one code of slack where float32 sums differ in their last bit
        np.testing.assert_allclose(result, wanted, atol=1.01 * p["y"].scale.item())


def test_every_float_operand_is_dequantised() -> None:
    for node in quantized(params()).graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for value in node.inputs:
            if value is not None and value.dtype == ir.DataType.FLOAT:
                producer = value.producer()
                assert producer is not None
                assert producer.op_type == "DequantizeLinear", (node.name, value.name)


@pytest.mark.parametrize("dtype", [UINT8, INT8, UINT16, INT16])
def test_types_and_parameters_are_stored_as_given(dtype: IntegerType) -> None:
    given = choose_asymmetric(torch.tensor(-1.0), torch.tensor(3.0), dtype)
    model = quantized(params(scaled=given))
    node = next(n for n in nodes_of(model, "QuantizeLinear") if n.name == "scaled.q")
    scale, zero = node.inputs[1], node.inputs[2]
    assert scale is not None
    assert zero is not None
    assert scale.const_value is not None
    assert zero.const_value is not None
    assert scale.const_value.numpy() == np.float32(given.scale.item())
    assert zero.const_value.numpy() == given.zero_point.item()
    assert zero.const_value.numpy().dtype == dtype.name == node.outputs[0].dtype.numpy()  # type: ignore[union-attr]
    feed = {"x": random(2, 4), "k": random(4, 3, seed=1)}
    np.testing.assert_allclose(run_ort(model, feed)["y.dq"], run_reference(model, feed)["y.dq"], atol=2e-4)


def test_a_reshape_shares_its_inputs_parameters() -> None:
    model = quantized(params())
    by_name = {node.name: node for node in nodes_of(model, "QuantizeLinear")}
    assert by_name["flat.q"].inputs[1] is by_name["scores.q"].inputs[1]
    assert by_name["flat.q"].inputs[2] is by_name["scores.q"].inputs[2]


def test_two_bit_products_keep_their_codes_and_scales() -> None:
    """Of what MatMulNBits reads, only the activation comes out of a pair."""
    codes = np.random.default_rng(0).integers(-2, 2, (3, 16)).astype(np.int8)
    scale = np.array([0.5, 1.0, 2.0], np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="linear")
    model = graph_of([node], {"x": [1, 1, 2, 16]}, {"y": [1, 1, 2, 3]}, {"w": random(16, 3)})
    coded = CodedWeight((3, 16), 2, "nbits", lambda: (torch.from_numpy(codes), torch.from_numpy(scale)))
    run_passes(model, [StoreCodes({"w": coded}), TieRanges()])
    zero, x_scale = torch.tensor(32768, dtype=torch.int32), 0.25
    owners = {"x": x_scale, "y.product": 2**-9}
    p = {name: AffineParams(torch.tensor(step), zero, UINT16) for name, step in owners.items()}
    run_passes(model, [QuantizeActivations(p)])
    (product,) = nodes_of(model, "MatMulNBits")
    assert [name_of(value) for value in product.inputs if value] == ["y.flat.dq", "w.codes", "w.scale"]
    x = np.round(random(1, 1, 2, 16, seed=1) / x_scale) * x_scale
    wanted = x @ (codes * scale[:, None]).T
    np.testing.assert_allclose(run_ort(model, {"x": x.astype(np.float32)})["y.dq"], wanted, atol=2**-9)


def test_missing_range_names_the_owner() -> None:
    incomplete = {name: p for name, p in params().items() if name not in ("scores", "k")}
    with pytest.raises(PassError, match=r"QuantizeActivations failed: no activation range for \['k', 'scores'\]"):
        quantized(incomplete)


def test_needs_range_owners() -> None:
    with pytest.raises(PassError, match=r"without a range owner \(run TieRanges first\): \['x', 'k'"):
        run_passes(attention_like(), [QuantizeActivations(params())])


def test_postcondition_names_node_and_values() -> None:
    class Lazy(QuantizeActivations):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            return ir.passes.PassResult(model, modified=False)

    with pytest.raises(PassError, match=r"Lazy failed: Mul .* reads floats: \['x', 'factor'\]"):
        run_passes(attention_like(), [TieRanges(), Lazy(params())])


def codes_of(feed: Arrays, p: dict[str, AffineParams]) -> Arrays:
    def encode(name: str) -> np.ndarray:
        scale, zero, dtype = np.float32(p[name].scale.item()), p[name].zero_point.item(), p[name].dtype
        return np.clip(np.rint(feed[name] / scale) + zero, dtype.qmin, dtype.qmax).astype(dtype.name)

    return {name: encode(name) for name in feed}


def test_boundary_becomes_integer_under_the_old_names() -> None:
    p, feed = params(), {"x": random(2, 4), "k": random(4, 3, seed=1)}
    model = quantized(p, boundary=True)
    types = {name_of(value): value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    assert types == {"x": ir.DataType.UINT16, "k": ir.DataType.INT16, "y": ir.DataType.UINT16}
    with_floats = run_reference(quantized(p), feed)["y.dq"]
    for run in (run_reference, run_ort):
        codes = run(model, codes_of(feed, p))["y"].astype(np.int64)
        values = (codes - p["y"].zero_point.item()) * np.float32(p["y"].scale.item())
        np.testing.assert_allclose(values, with_floats, atol=1.01 * p["y"].scale.item())


def test_an_output_that_is_also_read_inside() -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["first"]), helper.make_node("Tanh", ["first"], ["second"])]
    model = graph_of(nodes, {"x": [3]}, {"first": [3], "second": [3]}, {})
    p = {name: choose_asymmetric(torch.tensor(-1.0), torch.tensor(1.0), UINT16) for name in ("x", "first", "second")}
    run_passes(model, [TieRanges(), QuantizeActivations(p), QuantizeBoundary()])
    x = np.array([0.1, -0.5, 0.9], np.float32)
    result = run_ort(model, codes_of({"x": x}, p))
    for name, wanted in (("first", np.tanh(x)), ("second", np.tanh(np.tanh(x)))):
        values = (result[name].astype(np.int64) - p[name].zero_point.item()) * p[name].scale.item()
        np.testing.assert_allclose(values, wanted, atol=1e-4)


def test_boundary_needs_quantised_values() -> None:
    with pytest.raises(PassError, match="QuantizeBoundary failed: input 'x' is not quantised where it enters"):
        run_passes(attention_like(), [QuantizeBoundary()])


def test_boundary_needs_dequantised_outputs() -> None:
    model = quantized(params())
    restore = model.graph.outputs[0].producer()
    assert restore is not None
    model.graph.outputs[0] = restore.inputs[0]  # type: ignore[assignment]
    with pytest.raises(PassError, match=r"output 'y\.q' is not dequantised where it leaves"):
        run_passes(model, [QuantizeBoundary()])


def test_boundary_postcondition_names_floats() -> None:
    class Lazy(QuantizeBoundary):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            return ir.passes.PassResult(model, modified=False)

    with pytest.raises(PassError, match=r"Lazy failed: floats at the graph boundary: \['x', 'k', 'y\.dq'\]"):
        run_passes(quantized(params()), [Lazy()])
