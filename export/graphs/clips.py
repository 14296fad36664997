"""The activation clip of quantisation-aware checkpoints: what goes into and comes out of a linear layer is bounded.

Source: transformers' integrations/gemma_quant.py (`apply_srq`). There values are also rounded to 8 bits; the weights
were trained under the bounds, so these are kept where activations have 16 bits, and the rounding is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Mapping

Scales = tuple[float | None, float | None]
"""Scales of a linear layer's input and output; None is no clip."""
_LOWEST, _HIGHEST = -128, 127


def clip_bounds(scale: float) -> tuple[float, float]:
    """The values that a signed 8-bit code of this scale reaches: (-128 s, 127 s)."""
    return _LOWEST * scale, _HIGHEST * scale


class ClippedLinear(nn.Linear):
    """A linear layer without bias whose input and output are clipped; the weight is the given layer's own."""

    def __init__(self, linear: nn.Linear, scales: Scales) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.scales = scales

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        before, after = self.scales
        return _clipped(super().forward(_clipped(x, before)), after)


def add_clips(model: nn.Module, scales: Mapping[str, Scales]) -> None:
    """Replace the linear layers named in `scales` (module path -> scales) by clipped ones, in place."""
    for path, of_layer in scales.items():
        if of_layer != (None, None):
            linear = model.get_submodule(path)
            assert isinstance(linear, nn.Linear)
            model.set_submodule(path, ClippedLinear(linear, of_layer))


def _clipped(x: Tensor, scale: float | None) -> Tensor:
    return x if scale is None else x.clamp(*clip_bounds(scale))
