"""Which elements of a tensor share one scale, and the statistics over such a group.

Scales keep every dimension of their tensor (size 1 where reduced), so a scale can never be broadcast along the wrong
axis of a square weight. After torchao's granularity types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from quant.errors import QuantError


@dataclass(frozen=True)
class PerTensor:
    """One scale for everything.

    | input shape | scale shape |
    |-------------|-------------|
    | [8, 16]     | [1, 1]      |
    """


@dataclass(frozen=True)
class PerChannel:
    """One scale for each index of `axis`; a negative axis counts from the end.

    | input shape | axis | scale shape |
    |-------------|------|-------------|
    | [8, 16]     | 0    | [8, 1]      |
    | [8, 16]     | -1   | [1, 16]     |
    """

    axis: int


Granularity: TypeAlias = PerTensor | PerChannel


def low_high(x: torch.Tensor, granularity: Granularity) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value of every group, each float32 in the scale's shape.

    NaN in a group gives NaN. Raises QuantError for an empty tensor or an axis that `x` lacks.
    """
    if x.numel() == 0:
        raise QuantError(f"a tensor of shape {list(x.shape)} is empty and has no range; leave it unquantised")
    dims = _reduced_dims(x.ndim, granularity)
    if not dims:
        return x.float(), x.float()
    return x.amin(dims, keepdim=True).float(), x.amax(dims, keepdim=True).float()


def absmax(x: torch.Tensor, granularity: Granularity) -> torch.Tensor:
    """Largest magnitude of every group, float32 in the scale's shape; makes no copy of `x`. Raises as `low_high`."""
    low, high = low_high(x, granularity)
    return torch.maximum(high, -low)


def _reduced_dims(ndim: int, granularity: Granularity) -> list[int]:
    if isinstance(granularity, PerTensor):
        return list(range(ndim))
    if not -ndim <= granularity.axis < ndim:
        raise QuantError(f"axis {granularity.axis} does not exist in a tensor of {ndim} dimensions")
    return [dim for dim in range(ndim) if dim != granularity.axis % ndim]
