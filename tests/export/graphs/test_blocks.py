"""The building blocks against transformers' own and against attention written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm, apply_rotary_pos_emb

from export.graphs.blocks import AttentionContext, GatedMlp, RmsNorm, _swap_rows_and_heads, grouped_attention, rotate
from export.graphs.feeds import MASKED


@pytest.mark.parametrize("weight", [0.3, 1.3, 2.3])
def test_rms_norm_multiplies_by_plain_w(weight: float) -> None:
    x = torch.randn(1, 1, 3, 16)
    ours, theirs = RmsNorm(16, 1e-6), Gemma4RMSNorm(16, eps=1e-6)
    torch.nn.init.constant_(ours.weight, weight)
    torch.nn.init.constant_(theirs.weight, weight)
    root_mean_square = x.double().pow(2).mean(-1, keepdim=True).sqrt()
    expected = (x.double() / root_mean_square * weight).float()
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-6, rtol=0)


def test_rotation_equals_transformers() -> None:
    x, angles = torch.randn(1, 4, 3, 16), torch.randn(1, 3, 8)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    signed = torch.cat([-angles.sin(), angles.sin()], -1)
    wanted = apply_rotary_pos_emb(x, cos, sin, unsqueeze_dim=1)
    torch.testing.assert_close(rotate(x, cos[:, None], signed[:, None]), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("batch", "rows", "kv_heads"), [(1, 1, 2), (2, 1, 1), (1, 5, 2), (2, 3, 4)])
def test_grouped_attention_equals_repeated_heads(batch: int, rows: int, kv_heads: int) -> None:
    heads, dim, window = 4, 8, 6
    query = torch.randn(batch, heads, rows, dim)
    keys, values = torch.randn(batch, kv_heads, window, dim), torch.randn(batch, kv_heads, window, dim)
    mask = torch.where(torch.rand(batch, 1, rows, window) < 0.3, MASKED, 0.0)
    context = AttentionContext(keys.transpose(2, 3), values, mask, torch.ones(1), torch.ones(1))
    repeat = heads // kv_heads
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query,
        keys.repeat_interleave(repeat, 1),
        values.repeat_interleave(repeat, 1),
        attn_mask=mask.expand(batch, heads, rows, window),
        scale=1.0,
    )
    torch.testing.assert_close(grouped_attention(query, context), wanted, atol=1e-5, rtol=1e-5)


def test_masked_slot_with_a_raw_score_of_20_has_no_probability() -> None:
    query = torch.tensor([[[[1.0, 0.0]]]])
    keys = torch.tensor([[[[0.0, 20.0], [0.0, 0.0]]]])  # [batch, kv_heads, head_dim, window]: raw scores 0 and 20
    values = torch.tensor([[[[0.0, 0.0], [1.0, 1.0]]]])  # so the result is the second slot's probability
    mask = torch.tensor([[[[0.0, MASKED]]]])
    weight = grouped_attention(query, AttentionContext(keys, values, mask, mask, mask))
    assert weight.max().item() < 1e-6
    assert np.exp(20 + MASKED) < 1e-6


def test_fully_masked_row_stays_finite() -> None:
    context = AttentionContext(
        torch.randn(1, 1, 8, 4), torch.randn(1, 1, 4, 8), torch.full((1, 1, 1, 4), MASKED), torch.ones(1), torch.ones(1)
    )
    assert torch.isfinite(grouped_attention(torch.randn(1, 2, 1, 8), context)).all()


def test_mlp_uses_tanh_gelu() -> None:
    mlp, x = GatedMlp(8, 12), 3 * torch.randn(1, 1, 2, 8)
    gate = mlp.gate_proj(x)
    cubic = gate + 0.044715 * gate**3
    gelu = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * cubic))
    torch.testing.assert_close(mlp(x), mlp.down_proj(gelu * mlp.up_proj(x)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 4, 3), (1, 4, 1, 3), (1, 5, 4, 3), (2, 5, 4, 3), (2, 1, 4, 3)])
def test_swap_is_a_transpose_for_any_number_of_rows(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert torch.equal(_swap_rows_and_heads(x), x.transpose(1, 2))
