"""Clipped layers against transformers' QuantizedLinear whose rounding is taken out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from transformers.integrations import gemma_quant

from export.graphs.clips import ClippedLinear, add_clips, clip_bounds

if TYPE_CHECKING:
    from export.graphs.clips import Scales

IN, OUT = 6, 5


def clamp_only(x: torch.Tensor, scale: torch.Tensor, bits: int = 8) -> torch.Tensor:
    """`apply_srq` without its rounding; a scale of 0 is no clip."""
    low, high = -(2 ** (bits - 1)) * scale, (2 ** (bits - 1) - 1) * scale
    return torch.where(scale != 0, torch.clamp(x, low, high), x)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> gemma_quant.QuantizedLinear:
    monkeypatch.setattr(gemma_quant, "apply_srq", clamp_only)
    layer = gemma_quant.QuantizedLinear(IN, OUT, num_bits=8)
    layer.weight.data = torch.randint(-128, 128, (OUT, IN), dtype=torch.int8)
    layer.weight_scale.data = torch.rand(OUT, 1) * 0.05
    return layer


def test_the_reference_clips_where_apply_srq_does() -> None:
    """Of what `apply_srq` gives, only the rounding is gone."""
    x, scale = torch.randn(1000) * 3, torch.tensor(0.01)
    rounded = gemma_quant.apply_srq(x, scale)
    torch.testing.assert_close(clamp_only(x, scale), rounded, rtol=0, atol=0.00501)
    assert (rounded.min(), rounded.max()) == clip_bounds(scale.item()) == (pytest.approx(-1.28), pytest.approx(1.27))


@pytest.mark.parametrize("scales", [(0.01, 0.02), (0.01, None), (None, 0.02), (None, None)])
def test_clipped_linear(reference: gemma_quant.QuantizedLinear, scales: Scales) -> None:
    for parameter, scale in zip(
        (reference.input_activation_scale, reference.output_activation_scale), scales, strict=True
    ):
        parameter.data = torch.tensor(scale or 0.0)
    linear = nn.Linear(IN, OUT, bias=False)
    linear.weight.data = reference._dequantize_weights()
    clipped = ClippedLinear(linear, scales)
    assert clipped.weight is linear.weight
    x = 3 * torch.randn(4, 7, IN)
    result = clipped(x)
    torch.testing.assert_close(result, reference(x))
    if scales != (None, None):
        assert (result - linear(x)).abs().max() > 0.1


def test_only_layers_with_scales_are_replaced() -> None:
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(3)), nn.ModuleDict({"in": nn.Linear(3, 3)}))
    before = list(model)
    add_clips(model, {"0": (0.1, None), "1": (None, None), "3.in": (None, 0.2)})
    assert [type(layer) for layer in model[:3]] == [ClippedLinear, nn.Linear, nn.Linear]
    assert model[1] is before[1]
    inner = model.get_submodule("3.in")
    assert isinstance(inner, ClippedLinear)
    assert inner.scales == (None, 0.2)
    assert model[0].weight is before[0].weight
