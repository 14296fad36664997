"""Weight quantisation against a slow float64 search, and on channels that break naive scales."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quant.dtypes import INT2, INT4, INT8, INT16, IntegerType
from quant.errors import QuantError
from quant.weights import DEFAULT_RATIOS, Clip, QuantizedWeight, quantize_weight, search_clip


def brute_force_errors(weight: np.ndarray, qmin: int, qmax: int) -> np.ndarray:
    """Squared error [rows, 41] of every row and ratio 1.00, 0.99 .. 0.60, one element at a time, in float64."""
    errors = np.zeros((len(weight), 41))
    for row, values in enumerate(weight.astype(np.float64)):
        peak = max(abs(value) for value in values)
        for step in range(41):
            scale = (1.0 - 0.01 * step) * peak / qmax
            codes = [min(max(round(value / scale), qmin), qmax) for value in values]
            errors[row, step] = sum((code * scale - value) ** 2 for code, value in zip(codes, values, strict=True))
    return errors


@pytest.fixture(scope="module")
def heavy_tailed() -> torch.Tensor:
    """[12, 96] with outliers in some rows, so that ratios all over 1.0 .. 0.6 are best."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(12, 96))
    weight[:6, 0] = np.linspace(3, 12, 6)
    weight[6:9] = rng.laplace(size=(3, 96))
    return torch.from_numpy(weight.astype(np.float32))


def test_default_ratios_are_41_steps_of_a_hundredth() -> None:
    np.testing.assert_allclose(DEFAULT_RATIOS, 1.0 - 0.01 * np.arange(41), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [INT2, INT4, INT8])
@pytest.mark.parametrize("magnitude", [1.0, 1e-25])
def test_clip_search_is_the_brute_force_minimum(
    heavy_tailed: torch.Tensor, dtype: IntegerType, magnitude: float
) -> None:
    """At 1e-25 a squared float32 error is 0 for every ratio: the search must not lose its sight there."""
    weight = heavy_tailed * magnitude
    errors = brute_force_errors(weight.numpy(), dtype.qmin, dtype.qmax)
    best = errors.argmin(axis=1)
    peak = weight.abs().amax(1).double().numpy()
    found = search_clip(weight, dtype)[:, 0].double().numpy() * dtype.qmax / peak
    np.testing.assert_allclose(found, 1.0 - 0.01 * best, rtol=0, atol=1e-6)
    if dtype is INT4:
        assert len(set(best)) >= 4, "the rows of this test must ask for different ratios"


def test_blocks_change_nothing(heavy_tailed: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize_weight(heavy_tailed, INT4, Clip.MSE)
    monkeypatch.setattr("quant.weights._BLOCK_ELEMENTS", 200)
    blocks = quantize_weight(heavy_tailed, INT4, Clip.MSE)
    assert torch.equal(whole.codes, blocks.codes)
    assert torch.equal(whole.scale, blocks.scale)


def test_ties_keep_the_larger_ratio() -> None:
    """Ratios 1.0 and 0.875 both reproduce a lone negative weight, as codes -7 and -8; the order given is no matter."""
    lone = torch.tensor([[-0.5, 0.0]])
    assert search_clip(lone, INT4, (0.875, 1.0)).item() == np.float32(0.5) / np.float32(7)


def test_codes_use_minus_eight() -> None:
    """At ratio 0.875 the weight -0.5 is code -8, which ratio 1.0 never reaches."""
    scale = search_clip(torch.tensor([[-0.5, 0.0]]), INT4, (0.875,))
    assert scale.item() == pytest.approx(0.5 * 0.875 / 7)
    weight = torch.tensor([[-0.5] + [0.0625] * 64])
    quantized = quantize_weight(weight, INT4, Clip.MSE)
    assert quantized.codes.min().item() == -8
    errors = brute_force_errors(weight.numpy(), -8, 7)
    assert quantized.scale.item() == pytest.approx((1 - 0.01 * errors.argmin()) * 0.5 / 7, rel=1e-6)


def test_clip_none_is_absmax(heavy_tailed: torch.Tensor) -> None:
    quantized = quantize_weight(heavy_tailed, INT4, Clip.NONE)
    expected_scale = np.abs(heavy_tailed.numpy()).max(1, keepdims=True) / np.float32(7)
    np.testing.assert_array_equal(quantized.scale.numpy(), expected_scale)
    expected = np.clip(np.rint(heavy_tailed.numpy() / expected_scale), -8, 7)
    np.testing.assert_array_equal(quantized.codes.numpy(), expected.astype(np.int8))
    np.testing.assert_array_equal(quantized.dequantize().numpy(), expected.astype(np.float32) * expected_scale)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("clip", list(Clip))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_all_zero_and_tiny_channels(clip: Clip, dtype: torch.dtype) -> None:
    """Cases 3 and 4: a dead channel stays exactly 0, a tiny one keeps its scale, and nothing warns."""
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(4)).to(dtype)
    weight[0] = 0
    for row, tiny in ((1, 2e-7), (2, 1e-6), (3, 4e-7)):
        weight[row] = tiny
    quantized = quantize_weight(weight, INT4, clip)
    assert bool((torch.isfinite(quantized.scale) & (quantized.scale > 0)).all())
    assert not quantized.codes[0].any()
    assert not quantized.dequantize()[0].any()
    for row in (1, 2, 3):
        assert quantized.codes[row].unique().tolist() == [7]
        assert quantized.dequantize()[row, 0].item() == pytest.approx(weight[row, 0].item(), rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_whole_zero_weight() -> None:
    quantized = quantize_weight(torch.zeros(3, 5), INT8, Clip.MSE)
    assert not quantized.dequantize().any()
    assert bool((quantized.scale > 0).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_named(bad: float) -> None:
    weight = torch.ones(4, 4)
    weight[2, 1] = bad
    for clip in Clip:
        with pytest.raises(QuantError, match="row 2"):
            quantize_weight(weight, INT4, clip)


def test_other_refusals() -> None:
    with pytest.raises(QuantError, match=r"\[2, 2, 2\] is not a matrix"):
        search_clip(torch.ones(2, 2, 2), INT4)
    with pytest.raises(QuantError, match="int16 does not fit"):
        quantize_weight(torch.ones(2, 2), INT16, Clip.NONE)
    for ratios in ((), (0.0,), (1.5,)):
        with pytest.raises(QuantError, match="clip ratios"):
            search_clip(torch.ones(2, 2), INT4, ratios)
    with pytest.raises(QuantError, match="empty"):
        quantize_weight(torch.ones(0, 2), INT4, Clip.NONE)


def test_dequantize_by_hand() -> None:
    quantized = QuantizedWeight(torch.tensor([[-8, 7], [1, 0]], dtype=torch.int8), torch.tensor([[0.5], [2.0]]), INT4)
    assert quantized.dequantize().tolist() == [[-4.0, 3.5], [2.0, 0.0]]
