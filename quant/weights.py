"""Symmetric weights with one scale per output channel, and the search for the clip that loses least.

The clip search is the paper's "per-channel clip by mean-squared-error search, ratio 1.0 to 0.6" (design notes, settings
of the head). Works on row blocks, so a [262144, 1024] matrix costs its codes and a few megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import torch

from quant.affine import AffineParams, choose_symmetric, dequantize, quantize
from quant.errors import QuantError
from quant.granularity import PerChannel, absmax

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quant.dtypes import IntegerType

DEFAULT_RATIOS: tuple[float, ...] = tuple((100 - step) / 100 for step in range(41))
# 2**17 float32 elements a buffer: the three buffers of the search stay in the second-level cache
_BLOCK_ELEMENTS = 2**17


class Clip(Enum):
    """How the largest kept magnitude of a channel is chosen."""

    NONE = "none"  # the channel's absmax
    MSE = "mse"  # the ratio of it with the least squared error


@dataclass(frozen=True)
class QuantizedWeight:
    """`codes` int8 [out, in] (also for 2 and 4 bits), `scale` float32 [out, 1], zero point 0."""

    codes: torch.Tensor
    scale: torch.Tensor
    dtype: IntegerType

    def dequantize(self) -> torch.Tensor:
        """codes * scale, float32 [out, in]."""
        return dequantize(self.codes, symmetric_params(self.scale, self.dtype))


def symmetric_params(scale: torch.Tensor, dtype: IntegerType) -> AffineParams:
    """`scale` with zero point 0."""
    return AffineParams(scale, torch.zeros_like(scale, dtype=torch.int32), dtype)


def search_clip(weight: torch.Tensor, dtype: IntegerType, ratios: Sequence[float] = DEFAULT_RATIOS) -> torch.Tensor:
    """Scale [out, 1] float32 = ratio * absmax / qmax with the least squared error of each row of `weight` [out, in].

    Ties keep the larger ratio. Raises QuantError for a weight that is not a matrix, is empty or not finite, and for
    ratios that are not in (0, 1].
    """
    if not ratios or not all(0 < ratio <= 1 for ratio in ratios):
        raise QuantError(f"clip ratios {list(ratios)} must be numbers above 0 and at most 1, and not none at all")
    peak = _finite_absmax(weight)
    descending = sorted(ratios, reverse=True)
    scale = torch.empty_like(peak)
    for rows in _row_blocks(weight):
        ratio = _best_ratio(weight[rows].float(), peak[rows], dtype, descending)
        scale[rows] = choose_symmetric(peak[rows] * ratio, dtype).scale
    return scale


def quantize_weight(weight: torch.Tensor, dtype: IntegerType, clip: Clip) -> QuantizedWeight:
    """Quantise `weight` [out, in] per output channel; an all-zero row gets codes 0 and a scale above 0.

    Raises QuantError as `search_clip`, and for types wider than 8 bits.
    """
    if dtype.bits > 8:
        raise QuantError(f"weights are kept in int8 codes, {dtype.name} does not fit; use 8 bits or fewer")
    scale = search_clip(weight, dtype) if clip is Clip.MSE else choose_symmetric(_finite_absmax(weight), dtype).scale
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    for rows in _row_blocks(weight):
        codes[rows] = quantize(weight[rows], symmetric_params(scale[rows], dtype)).to(torch.int8)
    return QuantizedWeight(codes, scale, dtype)


def _best_ratio(
    weight: torch.Tensor, peak: torch.Tensor, dtype: IntegerType, descending: Sequence[float]
) -> torch.Tensor:
    """The ratio [rows, 1] of each row with the least error; `weight` [rows, in] float32, `peak` its absmax [rows, 1].

    The error is measured in units of absmax / qmax: squares of tiny weights would underflow to equal zeros.
    """
    unit = weight / torch.where(peak == 0, 1.0, peak) * dtype.qmax
    scaled, rounded = torch.empty_like(unit), torch.empty_like(unit)
    best_error = torch.full_like(peak, torch.inf)
    best_ratio = torch.full_like(peak, descending[0])
    for ratio in descending:
        torch.div(unit, ratio, out=scaled)
        torch.round(scaled, out=rounded).clamp_(dtype.qmin, dtype.qmax).sub_(scaled)
        error = torch.linalg.vector_norm(rounded, dim=1, keepdim=True).mul_(ratio)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_ratio = torch.where(better, ratio, best_ratio)
    return best_ratio


def _finite_absmax(weight: torch.Tensor) -> torch.Tensor:
    if weight.ndim != 2:
        raise QuantError(f"a weight of shape {list(weight.shape)} is not a matrix [out, in]")
    peak = absmax(weight, PerChannel(0))
    bad = torch.nonzero(~torch.isfinite(peak[:, 0]))
    if bad.numel():
        raise QuantError(
            f"weight row {int(bad[0])} of shape {list(weight.shape)} holds NaN or inf; check the checkpoint"
        )
    return peak


def _row_blocks(weight: torch.Tensor) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // weight.shape[1])
    return (slice(start, start + step) for start in range(0, weight.shape[0], step))
