"""Rounding in training: bit-equal to quant's arithmetic, gradients by hand, caches that round what layers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from hyco_npu.family import architecture
from hyco_npu.family.qat import RoundedCache, learned_rounding, make_quantization_aware
from hyco_npu.family.quantized_slm import bit_map
from quant.dtypes import INT2, INT4, INT8, IntegerType
from quant.fake import fake_quantize
from quant.weights import symmetric_params
from tests.hyco_npu.family.builders import make_telling

if TYPE_CHECKING:
    from transformers import Gemma4ForCausalLM


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(6, 2048, (2, 90), generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def aware(ids: torch.Tensor) -> Gemma4ForCausalLM:
    torch.manual_seed(5)
    model = make_telling(architecture.build_slm(), seed=5)
    make_quantization_aware(model, bit_map(), ids)
    return model


@pytest.mark.parametrize(("dtype", "shape"), [(INT2, (6, 1)), (INT4, (6, 1)), (INT8, ())])
def test_rounding_equals_the_export_s_to_the_bit(dtype: IntegerType, shape: tuple[int, ...]) -> None:
    x = torch.randn(6, 50, requires_grad=True)
    log_scale = torch.rand(shape) - 2.0
    upstream = torch.randn(6, 50)
    rounded = learned_rounding(x, log_scale, dtype)
    scale = log_scale.exp().expand(6, 1) if shape else log_scale.exp()
    expected = fake_quantize(x, symmetric_params(scale, dtype))
    assert torch.equal(rounded, expected)
    (gradient,) = torch.autograd.grad(rounded, x, upstream)
    (expected_gradient,) = torch.autograd.grad(expected, x, upstream)
    assert torch.equal(gradient, expected_gradient)
    if dtype is not INT8:
        assert (gradient == 0).any()


def test_the_scale_s_gradient_by_hand() -> None:
    """Codes -2..1 at scale 0.5: 0.2 -> 0, -0.6 -> -1, 3 saturates at 1, -4 at -2; dy/dln(s) is y - x inside, else y."""
    x = torch.tensor([[0.2, -0.6, 3.0, -4.0]])
    upstream = torch.tensor([[1.0, 10.0, 100.0, 1000.0]])
    expected = 1.0 * (0.0 - 0.2) + 10.0 * (-0.5 + 0.6) + 100.0 * 0.5 + 1000.0 * -1.0
    for shape in ((), (1, 1)):
        log_scale = torch.full(shape, 0.5).log().requires_grad_()
        rounded = learned_rounding(x, log_scale, INT2)
        assert torch.allclose(rounded, torch.tensor([[0.0, -0.5, 0.5, -1.0]]))
        (gradient,) = torch.autograd.grad(rounded, log_scale, upstream)
        assert gradient.shape == shape
        assert gradient.item() == pytest.approx(expected, rel=1e-5)


def test_every_layer_reads_keys_and_values_on_the_grid_of_the_owner(
    aware: Gemma4ForCausalLM, ids: torch.Tensor
) -> None:
    with torch.no_grad():
        out = aware(ids, cache=RoundedCache(aware), use_cache=False, return_shared_kv_states=True)
        plain = aware(ids, use_cache=False, return_shared_kv_states=True)
        for kind, owner in (("sliding_attention", 1), ("full_attention", 2)):
            attention = aware.model.layers[owner].self_attn
            scales = attention.log_k_cache_scale.exp(), attention.log_v_cache_scale.exp()
            for shared, unrounded, scale in zip(
                out.shared_kv_states[kind], plain.shared_kv_states[kind], scales, strict=True
            ):
                codes = shared / scale
                assert torch.allclose(codes, codes.round(), atol=1e-3)
                assert codes.round().unique().numel() > 100
                # Layers before the owner are rounded too: alike, not equal up to half a step.
                assert torch.corrcoef(torch.stack([shared.flatten(), unrounded.flatten()]))[0, 1] > 0.98
    assert not torch.equal(out.logits, plain.logits)


def test_a_cache_that_rounds_nothing_changes_nothing(aware: Gemma4ForCausalLM, ids: torch.Tensor) -> None:
    """Masks and positions with the cache are those of a plain forward, beyond the window too."""
    cache = RoundedCache(aware)
    cache.update = lambda keys, values, *_, **__: (keys, values)  # type: ignore[method-assign]
    with torch.no_grad():
        assert torch.equal(aware(ids, cache=cache, use_cache=False).logits, aware(ids, use_cache=False).logits)


def test_activation_scales_belong_to_their_module(ids: torch.Tensor) -> None:
    """What the output layer reads is the final norm's result: its clip lies at 0.6 to 1 of that one's peak."""
    torch.manual_seed(5)
    model = make_telling(architecture.build_slm(), seed=5)
    with torch.no_grad():
        peak = model.model(ids, use_cache=False).last_hidden_state.abs().max().item()
    make_quantization_aware(model, bit_map(), ids)
    assert 0.6 * peak / 127 <= model.lm_head.log_input_scale.exp().item() * (1 + 1e-5)
    assert model.lm_head.log_input_scale.exp().item() <= peak / 127 * (1 + 1e-5)
    assert model.lm_head.log_output_scale is None
    owners = [hasattr(layer.self_attn, "log_k_cache_scale") for layer in model.model.layers]
    assert owners == [True, True, True, False, False, False]


def test_scales_are_learned_and_stay_out_of_muon(aware: Gemma4ForCausalLM, ids: torch.Tensor) -> None:
    """Muon takes matrices: a scale must be a vector or a scalar. Every one must get a gradient."""
    aware.zero_grad()
    aware(ids, cache=RoundedCache(aware), use_cache=False).logits.square().mean().backward()
    scales = {name: p for name, p in aware.named_parameters() if "log_" in name}
    assert all(scale.ndim < 2 for scale in scales.values())
    assert [name for name, scale in scales.items() if scale.grad is None or not scale.grad.any()] == []
