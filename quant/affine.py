"""Affine quantisation: code = clamp(round(x / scale) + zero_point), x' = (code - zero_point) * scale.

ONNX's QuantizeLinear and DequantizeLinear: division (not a multiplication by 1 / scale), round half to even, everything
in float32 whatever the type of x. Export, calibration and training all call these functions, so that they cannot drift.
Knows nothing of weights, tables or graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from quant.errors import QuantError

if TYPE_CHECKING:
    from quant.dtypes import IntegerType

# Scale of a group that holds only zeros: any finite value does, its codes are all equal to the zero point.
EMPTY_SCALE = 1.0
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class AffineParams:
    """How one tensor is quantised.

    `scale` (float32, finite, > 0) and `zero_point` (int32, a code of `dtype`) have one shape: [] for one scale, or as
    many dimensions as the tensor with size 1 where a scale is shared. Raises QuantError for anything else.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    dtype: IntegerType

    def __post_init__(self) -> None:
        if self.scale.dtype != torch.float32 or self.zero_point.dtype != torch.int32:
            raise QuantError(
                f"scale and zero point are {self.scale.dtype}, {self.zero_point.dtype}; give float32, int32"
            )
        if self.scale.shape != self.zero_point.shape:
            raise QuantError(
                f"scale {list(self.scale.shape)} and zero point {list(self.zero_point.shape)} differ in shape"
            )
        usable = torch.isfinite(self.scale) & (self.scale > 0)
        if not bool(usable.all()):
            raise QuantError(f"scale {self.scale[~usable][0].item()} is not a finite number above 0; use choose_*")
        inside = (self.zero_point >= self.dtype.qmin) & (self.zero_point <= self.dtype.qmax)
        if not bool(inside.all()):
            raise QuantError(f"zero point {self.zero_point[~inside][0].item()} is not a code of {self.dtype.name}")


def choose_asymmetric(low: torch.Tensor, high: torch.Tensor, dtype: IntegerType) -> AffineParams:
    """Parameters that spread `dtype` over [min(low, 0), max(high, 0)], so that 0 is exact.

    `low` and `high` are any shape that broadcasts against the tensor later; an all-zero range gets `EMPTY_SCALE`.
    Raises QuantError for a bound that is not finite or low > high.
    """
    if not bool((torch.isfinite(low) & torch.isfinite(high)).all()):
        raise QuantError(f"range [{low.min().item()}, {high.max().item()}] is not finite; look for NaN or inf upstream")
    if bool((low > high).any()):
        raise QuantError(f"range has low {low[low > high][0].item()} above high {high[low > high][0].item()}")
    # float64: high - low of two large float32 bounds may not fit float32
    bottom, top = low.double().clamp(max=0.0), high.double().clamp(min=0.0)
    scale = _usable_scale((top - bottom) / (dtype.qmax - dtype.qmin))
    zero_point = (dtype.qmin - bottom / scale.double()).round().clamp(dtype.qmin, dtype.qmax)
    return AffineParams(scale, zero_point.to(torch.int32), dtype)


def choose_symmetric(absmax: torch.Tensor, dtype: IntegerType) -> AffineParams:
    """Zero point 0 and scale absmax / qmax: the largest magnitude gets code qmax, for int4 that is 7.

    The scale is float32 also for float16 input, where 2e-7 / 7 would be 0, and never below float32's smallest normal
    number. Raises QuantError for an unsigned type, or an absmax that is negative or not finite.
    """
    if not dtype.signed:
        raise QuantError(f"{dtype.name} has no symmetric form; use a signed type or choose_asymmetric")
    usable = torch.isfinite(absmax) & (absmax >= 0)
    if not bool(usable.all()):
        raise QuantError(
            f"absmax {absmax[~usable][0].item()} is not a finite number from 0; look for NaN or inf upstream"
        )
    scale = _usable_scale(absmax.float() / dtype.qmax)
    return AffineParams(scale, torch.zeros_like(scale, dtype=torch.int32), dtype)


def quantize(x: torch.Tensor, params: AffineParams) -> torch.Tensor:
    """Codes of `x`, int32 in its shape; infinities saturate.

    Raises QuantError for NaN, and for a scale whose shape does not belong to `x` (see AffineParams).
    """
    return saturate(unclamped_codes(x, params), params.dtype)


def unclamped_codes(x: torch.Tensor, params: AffineParams) -> torch.Tensor:
    """round(x / scale) + zero_point before saturation, float32 in the shape of `x`. Raises as `quantize`."""
    _check_shapes(x, params)
    codes = (x.float() / params.scale).round_().add_(params.zero_point)
    if bool(torch.isnan(codes).any()):
        raise QuantError(f"a tensor of shape {list(x.shape)} holds NaN, which has no code; look upstream")
    return codes


def saturate(unclamped: torch.Tensor, dtype: IntegerType) -> torch.Tensor:
    """int32 codes of `dtype`, from the float32 result of `unclamped_codes`, in its shape."""
    return unclamped.clamp(dtype.qmin, dtype.qmax).to(torch.int32)


def dequantize(codes: torch.Tensor, params: AffineParams) -> torch.Tensor:
    """(codes - zero_point) * scale, float32 in the shape of `codes` (any integer type).

    Raises QuantError for a scale whose shape does not belong to `codes`.
    """
    _check_shapes(codes, params)
    return (codes.to(torch.int32) - params.zero_point).float() * params.scale


def round_trip(x: torch.Tensor, params: AffineParams) -> torch.Tensor:
    """What `x` becomes by quantisation and back, in the type and shape of `x`. Raises as `quantize`."""
    return dequantize(quantize(x, params), params).to(x.dtype)


def _usable_scale(scale: torch.Tensor) -> torch.Tensor:
    """float32, `EMPTY_SCALE` where 0, and not below the smallest normal number elsewhere (or it would underflow)."""
    kept = scale.float().clamp(min=_SMALLEST_SCALE, max=torch.finfo(torch.float32).max)
    return torch.where(scale == 0, torch.full_like(kept, EMPTY_SCALE), kept)


def _check_shapes(x: torch.Tensor, params: AffineParams) -> None:
    shape = params.scale.shape
    if not shape:
        return
    # A scale of shape [out] would silently run along the inputs of a square weight [out, in]: demand every dimension.
    fits = len(shape) == x.ndim and all(size in (1, whole) for size, whole in zip(shape, x.shape, strict=True))
    if not fits:
        raise QuantError(
            f"scale {list(shape)} does not belong to a tensor {list(x.shape)}; keep reduced dimensions as 1"
        )
