"""Affine arithmetic against ONNX's reference evaluator, torch's fake quantisation and closed forms."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from quant.affine import AffineParams, choose_asymmetric, choose_symmetric, dequantize, quantize, round_trip
from quant.dtypes import INT4, INT8, INT16, UINT8, UINT16, IntegerType
from quant.errors import QuantError
from quant.granularity import PerChannel, absmax

ALL_TYPES = [INT4, INT8, UINT8, INT16, UINT16]
LARGE = 2.0**127  # the width of [-LARGE, LARGE] does not fit float32


def params(scale: float, zero_point: int, dtype: IntegerType) -> AffineParams:
    return AffineParams(torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32), dtype)


def onnx_node(op: str, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int) -> np.ndarray:
    """One QuantizeLinear or DequantizeLinear of ONNX's reference implementation."""
    feeds = {"x": x, "scale": scale, "zero_point": zero_point}
    node = onnx.helper.make_node(op, list(feeds), ["y"], axis=axis)
    types = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    inputs = [onnx.helper.make_tensor_value_info(name, types[name], array.shape) for name, array in feeds.items()]
    output_type = types["zero_point" if op == "QuantizeLinear" else "scale"]
    output = onnx.helper.make_tensor_value_info("y", output_type, x.shape)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", inputs, [output]))
    outputs: Any = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(outputs[0])


@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16, UINT16])
def test_per_channel_codes_and_values_are_onnx_s(dtype: IntegerType) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 3, (16, 33)).astype(np.float32)
    x[0, :4] = [np.inf, -np.inf, 1e30, -1e30]
    scale = rng.uniform(0.001, 0.1, (16, 1)).astype(np.float32)
    zero_point = rng.integers(dtype.qmin, dtype.qmax + 1, (16, 1))
    ours = AffineParams(torch.from_numpy(scale), torch.from_numpy(zero_point.astype(np.int32)), dtype)
    codes = quantize(torch.from_numpy(x), ours)
    onnx_zero_point = zero_point[:, 0].astype(dtype.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # ONNX's reference casts inf
        expected = onnx_node("QuantizeLinear", np.clip(x, -1e6, 1e6), scale[:, 0], onnx_zero_point, 0)
    np.testing.assert_array_equal(codes.numpy(), expected.astype(np.int32))
    values = onnx_node("DequantizeLinear", expected, scale[:, 0], onnx_zero_point, 0)
    np.testing.assert_array_equal(dequantize(codes, ours).numpy(), values)


def test_halves_round_to_even() -> None:
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert quantize(x, params(1.0, 0, INT8)).tolist() == [-2, -2, 0, 0, 2, 2]
    # the zero point is added after the rounding: 0.5 + 1 rounded together would give 2
    assert quantize(x, params(1.0, 1, INT8)).tolist() == [-1, -1, 1, 1, 3, 3]


def test_the_scale_divides() -> None:
    """Values half-way between codes, where x / scale and x * (1 / scale) round apart (both by numpy in float32)."""
    scale = np.float32(0.0123)
    x = (np.arange(1, 4001, dtype=np.float32) + np.float32(0.5)) * scale
    divided, multiplied = np.rint(x / scale), np.rint(x * (np.float32(1) / scale))
    assert (divided != multiplied).any()
    codes = quantize(torch.from_numpy(x), params(float(scale), 0, INT16))
    np.testing.assert_array_equal(codes.numpy(), divided)


@pytest.mark.parametrize("dtype", ALL_TYPES)
@pytest.mark.parametrize("scale", [0.25, 0.03125])
def test_round_trip_is_torchs_fake_quantisation(dtype: IntegerType, scale: float) -> None:
    """Scales are powers of two, where torch's multiplication by 1 / scale is exact too."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2)) * scale * 40
    zero_point = (dtype.qmin + dtype.qmax) // 2 + 3
    expected = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, dtype.qmin, dtype.qmax)
    torch.testing.assert_close(round_trip(x, params(scale, zero_point, dtype)), expected, rtol=0, atol=0)


def test_nan_has_no_code() -> None:
    with pytest.raises(QuantError, match=r"shape \[2\] holds NaN"):
        quantize(torch.tensor([1.0, float("nan")]), params(1.0, 0, INT8))


def test_a_scale_without_its_reduced_dimension_is_refused_on_a_square_weight() -> None:
    channel_scale = AffineParams(torch.ones(8), torch.zeros(8, dtype=torch.int32), INT8)
    for function in (quantize, dequantize):
        with pytest.raises(QuantError, match=r"scale \[8\] does not belong to a tensor \[8, 8\]"):
            function(torch.ones(8, 8, dtype=torch.int8), channel_scale)
    with pytest.raises(QuantError, match="does not belong"):
        quantize(torch.ones(1, 8), AffineParams(torch.ones(8, 1), torch.zeros(8, 1, dtype=torch.int32), INT8))


@pytest.mark.parametrize(
    ("scale", "zero_point", "message"),
    [
        (torch.tensor(0.0), torch.tensor(0, dtype=torch.int32), "scale 0.0 is not a finite number above 0"),
        (torch.tensor(-1.0), torch.tensor(0, dtype=torch.int32), "scale -1.0"),
        (torch.tensor(float("nan")), torch.tensor(0, dtype=torch.int32), "scale nan"),
        (torch.tensor(1.0), torch.tensor(128, dtype=torch.int32), "zero point 128 is not a code of int8"),
        (torch.tensor(1.0), torch.tensor(0), "int64"),
        (torch.tensor(1.0, dtype=torch.float16), torch.tensor(0, dtype=torch.int32), "float16"),
        (torch.ones(2), torch.tensor(0, dtype=torch.int32), "differ in shape"),
    ],
)
def test_unusable_parameters_are_refused(scale: torch.Tensor, zero_point: torch.Tensor, message: str) -> None:
    with pytest.raises(QuantError, match=message):
        AffineParams(scale, zero_point, INT8)


@pytest.mark.parametrize(
    ("mask", "dtype", "step", "digits"),
    [(-65504.0, UINT16, 1.0, 3), (-255.0, UINT16, 0.0042, 4), (-65504.0, UINT8, 257.0, 0)],
)
def test_a_mask_in_the_range_eats_the_step(mask: float, dtype: IntegerType, step: float, digits: int) -> None:
    """Case 11: scores in [-20, 20] and a mask constant; steps as measured in public reports."""
    assert round(choose_asymmetric(torch.tensor(mask), torch.tensor(20.0), dtype).scale.item(), digits) == step


def test_mask_of_minus_100_hides_the_highest_score_and_keeps_the_step() -> None:
    """Case 11, the other fault: a masked slot must not win even where its raw score is +20."""
    chosen = choose_asymmetric(torch.tensor(-120.0), torch.tensor(20.0), UINT16)
    assert chosen.scale.item() == pytest.approx(140 / 65535)
    probability = torch.softmax(round_trip(torch.tensor([0.0, 20.0 - 100.0]), chosen), 0)[1].item()
    assert probability == pytest.approx(np.exp(-80.0), rel=0.01)
    assert probability < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    bounds=st.tuples(*[st.floats(-LARGE, LARGE, width=32)] * 2).map(sorted),
    dtype=st.sampled_from(ALL_TYPES),
)
def test_asymmetric_range_holds_zero_exactly_and_its_ends_to_a_step(bounds: list[float], dtype: IntegerType) -> None:
    low, high = bounds
    chosen = choose_asymmetric(torch.tensor(low), torch.tensor(high), dtype)
    scale = chosen.scale.item()
    assert np.isfinite(scale)
    assert scale > 0
    assert round_trip(torch.tensor(0.0), chosen).item() == 0.0
    for end in (low, high):
        assert abs(round_trip(torch.tensor(end, dtype=torch.float64), chosen).item() - end) <= scale * 1.001


def test_all_zero_range_has_a_finite_scale() -> None:
    for dtype in ALL_TYPES:
        chosen = choose_asymmetric(torch.zeros(3), torch.zeros(3), dtype)
        assert bool((torch.isfinite(chosen.scale) & (chosen.scale > 0)).all())
        assert round_trip(torch.zeros(3), chosen).tolist() == [0.0, 0.0, 0.0]


def test_int8_range_of_the_clamped_activations() -> None:
    """[-128 s, 127 s] in int8 is scale s and zero point 0."""
    s = 0.037
    chosen = choose_asymmetric(torch.tensor(-128 * s), torch.tensor(127 * s), INT8)
    assert chosen.scale.item() == pytest.approx(s, rel=1e-6)
    assert chosen.zero_point.item() == 0


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (1.0, -1.0, "low 1.0 above high -1.0"),
        (float("nan"), 1.0, "not finite"),
        (0.0, float("inf"), "not finite"),
    ],
)
def test_unusable_ranges_are_refused(low: float, high: float, message: str) -> None:
    with pytest.raises(QuantError, match=message):
        choose_asymmetric(torch.tensor(low), torch.tensor(high), UINT16)


def test_symmetric_scale_is_absmax_over_qmax() -> None:
    for dtype, qmax in ((INT4, 7), (INT8, 127), (INT16, 32767)):
        chosen = choose_symmetric(torch.tensor([[3.5], [0.0]]), dtype)
        assert chosen.scale[0].item() == np.float32(3.5) / np.float32(qmax)
        assert bool((torch.isfinite(chosen.scale) & (chosen.scale > 0)).all())
        assert chosen.zero_point.tolist() == [[0], [0]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [INT4, INT8])
def test_a_whole_zero_group_stays_zero(dtype: IntegerType) -> None:
    """Case 3: one group of 32 of a channel that is not dead; its neighbours keep their own scales."""
    groups = torch.randn(8, 2, 32, generator=torch.Generator().manual_seed(7))
    groups[3, 1] = 0
    chosen = choose_symmetric(groups.abs().amax(-1, keepdim=True), dtype)
    assert bool((torch.isfinite(chosen.scale) & (chosen.scale > 0)).all())
    codes = quantize(groups, chosen)
    assert not codes[3, 1].any()
    assert not dequantize(codes, chosen)[3, 1].any()
    assert codes[3, 0].abs().max() == codes[2, 1].abs().max() == dtype.qmax


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tiny", [2e-7, 4e-7, 1e-6, 1e-45])
def test_a_tiny_channel_keeps_a_scale(tiny: float, dtype: torch.dtype) -> None:
    """Case 4: float16(2e-7 / 7) is 0, so the scale must not be formed in the weight's type."""
    x = torch.full((1, 4), tiny, dtype=dtype)
    chosen = choose_symmetric(absmax(x, PerChannel(0)), INT4)
    assert chosen.scale.dtype == torch.float32
    assert chosen.scale.item() > 0
    if tiny > 1e-45:
        assert chosen.scale.item() == pytest.approx(x[0, 0].item() / 7, rel=1e-6)
        assert quantize(x, chosen).tolist() == [[7, 7, 7, 7]]


def test_a_float16_absmax_is_divided_in_float32() -> None:
    """Case 4: numpy agrees that the quotient is 0 in float16."""
    half = np.float16(2e-7)
    assert half / np.float16(7) == 0
    scale = choose_symmetric(torch.tensor(2e-7, dtype=torch.float16), INT4).scale
    assert scale.item() == np.float32(half) / np.float32(7)


def test_symmetric_refusals() -> None:
    with pytest.raises(QuantError, match="uint8 has no symmetric form"):
        choose_symmetric(torch.tensor(1.0), UINT8)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(QuantError, match=f"absmax {bad}"):
            choose_symmetric(torch.tensor([1.0, bad]), INT8)
