"""Fake quantisation against the converted model (codes made by numpy) and torch's own gradient."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from quant.affine import AffineParams, choose_asymmetric, choose_symmetric, dequantize, quantize
from quant.dtypes import INT4, INT8, UINT8, UINT16, IntegerType
from quant.errors import QuantError
from quant.fake import fake_quantize, fake_quantize_weight
from quant.granularity import PerTensor, low_high
from quant.weights import search_clip

NUMPY_TYPES = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}
DTYPES = list(NUMPY_TYPES)


def group_params(groups: torch.Tensor, scheme: str) -> AffineParams:
    """Parameters [out, groups, 1] of `groups` [out, groups, 32]."""
    low, high = groups.amin(-1, keepdim=True).float(), groups.amax(-1, keepdim=True).float()
    if scheme == "symmetric":
        return choose_symmetric(torch.maximum(high, -low), INT4)
    return choose_asymmetric(low, high, INT4)


def numpy_converted(x: torch.Tensor, params: AffineParams) -> torch.Tensor:
    """Conversion as a loader does it: integer codes, float32 arithmetic, one cast to the tensor's type at the end."""
    scale, zero_point = params.scale.numpy(), params.zero_point.numpy()
    codes = np.clip(np.rint(x.float().numpy() / scale) + zero_point, params.dtype.qmin, params.dtype.qmax)
    values = (codes.astype(np.int64) - zero_point).astype(np.float32) * scale
    return torch.from_numpy(values.astype(NUMPY_TYPES[x.dtype]).astype(np.float32)).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_training_forward_is_the_converted_forward(dtype: torch.dtype, scheme: str) -> None:
    """Case 6: Linear 64 -> 8, group 32, x (4, 64); bit for bit, SQNR infinite."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(8, 2, 32, generator=generator).to(dtype)
    x = torch.randn(4, 64, generator=generator).to(dtype)
    weight_params = group_params(weight, scheme)
    x_params = choose_asymmetric(*low_high(x, PerTensor()), UINT8)
    trained = functional.linear(fake_quantize(x, x_params), fake_quantize(weight, weight_params).flatten(1))
    codes = quantize(weight, weight_params).to(torch.int8)
    stored = dequantize(codes, weight_params).to(dtype)
    assert torch.equal(stored, numpy_converted(weight, weight_params))
    converted = functional.linear(numpy_converted(x, x_params), stored.flatten(1))
    assert trained.dtype == dtype
    assert torch.equal(trained, converted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fake_weight_is_the_exported_weight(dtype: torch.dtype) -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(6)).to(dtype)
    scale = search_clip(weight, INT4)
    params = AffineParams(scale, torch.zeros_like(scale, dtype=torch.int32), INT4)
    assert torch.equal(fake_quantize_weight(weight, scale, INT4), numpy_converted(weight, params))


@pytest.mark.parametrize(("dtype", "zero_point"), [(INT4, 0), (INT4, 2), (INT8, -7), (UINT16, 30000)])
def test_gradient_is_torchs(dtype: IntegerType, zero_point: int) -> None:
    """1 where the code does not saturate, 0 elsewhere; the scale is a power of two, where torch's forward is exact."""
    x = torch.randn(500, generator=torch.Generator().manual_seed(7)) * 0.25 * (dtype.qmax - dtype.qmin)
    weights = torch.randn(500, generator=torch.Generator().manual_seed(8))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    params = AffineParams(torch.tensor(0.25), torch.tensor(zero_point, dtype=torch.int32), dtype)
    (fake_quantize(ours, params) * weights).sum().backward()
    reference = torch.fake_quantize_per_tensor_affine(theirs, 0.25, zero_point, dtype.qmin, dtype.qmax)
    (reference * weights).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.equal(ours.grad, theirs.grad)
    assert 0 < int((ours.grad == 0).sum()) < 500


def test_gradient_by_hand() -> None:
    """int4, scale 1: codes hold -8 .. 7, and -8.4 still rounds to -8."""
    x = torch.tensor([-9.0, -8.4, 0.3, 7.4, 7.6], requires_grad=True)
    fake_quantize(x, AffineParams(torch.tensor(1.0), torch.tensor(0, dtype=torch.int32), INT4)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_gradient_keeps_the_tensors_type() -> None:
    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    fake_quantize(x, AffineParams(torch.tensor(0.5), torch.tensor(0, dtype=torch.int32), INT8)).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


def test_nan_stops_the_training_step() -> None:
    params = AffineParams(torch.tensor(1.0), torch.tensor(0, dtype=torch.int32), INT8)
    with pytest.raises(QuantError, match="NaN"):
        fake_quantize(torch.tensor([float("nan")]), params)
