"""Fake quantisation for training: the forward IS the export's arithmetic, the backward passes straight through.

The design notes ask for training and deployment that cannot drift, so nothing is recomputed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from quant.affine import AffineParams, dequantize, saturate, unclamped_codes
from quant.weights import symmetric_params

if TYPE_CHECKING:
    from quant.dtypes import IntegerType


class _StraightThrough(torch.autograd.Function):
    """y = round_trip(x), from its own three steps; dy/dx is 1 where the code does not saturate and 0 where it does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, params: AffineParams) -> torch.Tensor:
        codes = unclamped_codes(x, params)
        ctx.save_for_backward((codes >= params.dtype.qmin) & (codes <= params.dtype.qmax))
        return dequantize(saturate(codes, params.dtype), params).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (inside,) = ctx.saved_tensors
        return grads[0] * inside, None


def fake_quantize(x: torch.Tensor, params: AffineParams) -> torch.Tensor:
    """`x` as it will be after quantisation, in its own type: bit-equal to quantize, dequantize and a cast.

    Gradient 1 inside the clip range, 0 outside. Raises QuantError as `quantize`.
    """
    fake: torch.Tensor = _StraightThrough.apply(x, params)  # type: ignore[no-untyped-call]
    return fake


def fake_quantize_weight(weight: torch.Tensor, scale: torch.Tensor, dtype: IntegerType) -> torch.Tensor:
    """`weight` [out, in] under a fixed symmetric `scale` [out, 1], for example from `search_clip`."""
    return fake_quantize(weight, symmetric_params(scale, dtype))
