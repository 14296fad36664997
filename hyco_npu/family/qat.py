"""Quantisation-aware training of an SLM: the forward of transformers' `quant_method: gemma` modules, made trainable.

Every scale is learned in the logarithm, so that it stays above 0 and a step moves it by a fraction of its size.
Scale gradients follow LSQ (arXiv 1902.08153). Knows neither files nor packing; quantized_slm.py stores the result.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache

from quant.dtypes import INT2, INT4, INT8
from quant.weights import search_clip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Gemma4ForCausalLM

    from export.checkpoint.gemma_bits import BitMap
    from quant.dtypes import IntegerType

CACHES = ("k", "v")
_TYPES = {dtype.bits: dtype for dtype in (INT2, INT4, INT8)}
# Codes -2..1 of a bell-shaped row lose least with a scale of about a third of its largest value.
_CLIP_RATIOS = tuple(step / 50 for step in range(8, 51))
_OUTPUT_LAYER = "lm_head"


class _LearnedRounding(torch.autograd.Function):
    """y = clamp(round(x / s)) * s with s = exp(log_scale); dy/dx is 1 inside the clip, dy/dln(s) = y - x dy/dx."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, log_scale: torch.Tensor, dtype: IntegerType) -> torch.Tensor:
        scale = log_scale.exp()
        y = (x / scale).round_().clamp_(dtype.qmin, dtype.qmax).mul_(scale)
        ctx.save_for_backward(x, y, scale)
        ctx.dtype = dtype
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (x, y, scale), grad = ctx.saved_tensors, grads[0]
        low, high = (ctx.dtype.qmin - 0.5) * scale, (ctx.dtype.qmax + 0.5) * scale
        if scale.ndim == 0:
            # One pass over an activation instead of four: this is most of what rounding adds to a step.
            passed = torch.ops.aten.hardtanh_backward(grad, x, low.item(), high.item())
            log_grad = torch.dot(grad.flatten(), y.flatten()) - torch.dot(passed.flatten(), x.flatten())
        else:
            passed = torch.where((x > low) & (x < high), grad, 0.0)
            log_grad = (grad * y).addcmul_(passed, x, value=-1).sum_to_size(scale.shape)
        return passed, log_grad, None


def learned_rounding(x: torch.Tensor, log_scale: torch.Tensor, dtype: IntegerType) -> torch.Tensor:
    """float32 `x` as it is after quantisation to `dtype` and back, with scale exp(`log_scale`), which broadcasts.

    Equal to quant.fake.fake_quantize to the bit, and differentiable by the scale too.
    """
    rounded: torch.Tensor = _LearnedRounding.apply(x, log_scale, dtype)  # type: ignore[no-untyped-call]
    return rounded


class FakeQuantLinear(nn.Linear):
    """A linear layer without bias on rounded weights, int8 rounding of its input and, with a scale for it, its output.

    One weight scale per output. `log_weight_scale` [out] is a vector, so that no optimiser takes it for a matrix.
    """

    def __init__(self, linear: nn.Linear, bits: int, log_input: torch.Tensor, log_output: torch.Tensor | None) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.dtype = _TYPES[bits]
        self.weight = linear.weight
        self.log_weight_scale = _log_row_scales(linear.weight, self.dtype)
        self.log_input_scale = nn.Parameter(log_input)
        self.log_output_scale = None if log_output is None else nn.Parameter(log_output)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] -> [..., out]."""
        weight = learned_rounding(self.weight, self.log_weight_scale[:, None], self.dtype)
        out = F.linear(learned_rounding(x, self.log_input_scale, INT8), weight)
        return out if self.log_output_scale is None else learned_rounding(out, self.log_output_scale, INT8)


class FakeQuantEmbedding(nn.Module):
    """A table with rounded rows, one scale per row, times the factor that Gemma multiplies its embeddings by."""

    def __init__(self, table: Any, bits: int) -> None:
        super().__init__()
        self.dtype = _TYPES[bits]
        self.factor: float = table.scalar_embed_scale
        self.weight: nn.Parameter = table.weight
        self.log_weight_scale = _log_row_scales(table.weight, self.dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [...] -> [..., width]."""
        return F.embedding(ids, learned_rounding(self.weight, self.log_weight_scale[:, None], self.dtype)) * self.factor


class RoundedCache(DynamicCache):
    """Gives every layer its own keys and values back, rounded to 8 bits as the phone's cache holds them; keeps none.

    Good for one whole text from position 0. Layers that share keys and values read the rounded ones of their owner.
    """

    def __init__(self, model: Gemma4ForCausalLM) -> None:
        super().__init__()
        self._attentions: list[Any] = [layer.self_attn for layer in model.model.layers]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [batch, heads, length, head_dim] of the owner `layer_idx`, rounded."""
        attention = self._attentions[layer_idx]
        return (
            learned_rounding(key_states, attention.log_k_cache_scale, INT8),
            learned_rounding(value_states, attention.log_v_cache_scale, INT8),
        )


def make_quantization_aware(model: Gemma4ForCausalLM, bits: BitMap, ids: torch.Tensor) -> None:
    """Replace in place each float32 module that has bits by its fake-quantised form; cache scales go to the owners.

    Scales start where they lose least: weights by row, activations and caches on the text `ids` [batch, length]. The
    logits are not rounded: that would only make ties between the best tokens.
    """
    scales = _activation_scales(model, bits, ids)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Embedding) and (width := bits.table(name)) is not None:
            model.set_submodule(name, FakeQuantEmbedding(module, width))
        elif isinstance(module, nn.Linear) and (width := bits.linear(name)) is not None:
            output = None if name == _OUTPUT_LAYER else scales[f"{name}.output"]
            model.set_submodule(name, FakeQuantLinear(module, width, scales[f"{name}.input"], output))
    for index, layer in enumerate(model.model.layers):
        for cache in CACHES:
            if (scale := scales.get(f"{index}.{cache}")) is not None:
                layer.self_attn.register_parameter(f"log_{cache}_cache_scale", nn.Parameter(scale))


def _log_row_scales(weight: torch.Tensor, dtype: IntegerType) -> nn.Parameter:
    return nn.Parameter(search_clip(weight.detach(), dtype, _CLIP_RATIOS)[:, 0].log())


def _log_scale(x: torch.Tensor) -> torch.Tensor:
    return search_clip(x.detach().reshape(1, -1), INT8)[0, 0].log()


def _activation_scales(model: Gemma4ForCausalLM, bits: BitMap, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logarithms of the int8 scales that lose least on `ids`: "<module>.input", "<module>.output", "<layer>.k" or v."""
    scales: dict[str, torch.Tensor] = {}
    cache = _ObservingCache(scales)
    with torch.no_grad(), _observed_linears(model, bits, scales):
        model(ids, cache=cache, use_cache=False)
    return scales


@contextmanager
def _observed_linears(model: Gemma4ForCausalLM, bits: BitMap, scales: dict[str, torch.Tensor]) -> Iterator[None]:
    def observe(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            scales[f"{name}.input"], scales[f"{name}.output"] = _log_scale(inputs[0]), _log_scale(output)

        return hook

    handles = [
        module.register_forward_hook(observe(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and bits.linear(name) is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _ObservingCache(DynamicCache):
    """Keeps nothing but the scales of the keys and values that pass."""

    def __init__(self, scales: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._scales = scales

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._scales[f"{layer_idx}.k"] = _log_scale(key_states)
        self._scales[f"{layer_idx}.v"] = _log_scale(value_states)
        return key_states, value_states
