"""Building blocks of the static Gemma 4 graphs, written so that they trace to few, plain ONNX operators.

Layout is [batch, 1, rows, width] throughout. Keys are stored transposed, [batch, kv_heads, head_dim, window], so that
no transpose runs on the NPU. Nothing here knows about quantisation, masks' contents or positions: masks, cosines and
sines are inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class AttentionContext:
    """What the rows of one layer kind attend to.

    keys [batch, kv_heads, head_dim, window], values [batch, kv_heads, window, head_dim], mask [batch, 1, rows, window]
    (0 or -100, added to the scores), cos and sin [batch, 1, rows, head_dim] with the sign of the rotation folded into
    the first half of sin.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class KeysValues:
    """Keys [batch, kv_heads, head_dim, n] and values [batch, kv_heads, n, head_dim] of n rows."""

    keys: Tensor
    values: Tensor

    def followed_by(self, new: KeysValues) -> KeysValues:
        """These rows and behind them the `new` ones."""
        return KeysValues(torch.cat([self.keys, new.keys], dim=3), torch.cat([self.values, new.values], dim=2))


class RmsNorm(nn.Module):
    """y = x / rms(x) * w. Gemma 4 multiplies by w, not by 1 + w (transformers: Gemma4RMSNorm)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class UnitNorm(nn.Module):
    """y = x / rms(x): the norm of the values has no weight (transformers: Gemma4RMSNorm with with_scale=False).

    The ones are a constant that no state dict holds; with them the norm traces to one operator, like the others.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        # On the CPU even where modules are made on the meta device: no state dict will ever fill it.
        self.register_buffer("ones", torch.ones(width, device="cpu"), persistent=False)

    ones: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return F.rms_norm(x, (x.shape[-1],), self.ones, self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on x [batch, heads, rows, head_dim]; `sin` carries the minus sign of the first half."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([second, first], dim=-1) * sin


class _Attention(nn.Module):
    """Queries and output of an attention layer: scaling 1.0, grouped heads, a norm on the queries."""

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.q_norm = RmsNorm(head_dim, eps)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def attend(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[batch, 1, rows, hidden] -> the same."""
        batch, _, rows, _ = x.shape
        query = self.q_norm(self.q_proj(x).reshape(batch, rows, self.num_heads, self.head_dim))
        query = rotate(_swap_rows_and_heads(query), context.cos, context.sin)
        attended = grouped_attention(query, context)
        joined = _swap_rows_and_heads(attended).reshape(batch, 1, rows, self.num_heads * self.head_dim)
        output: Tensor = self.o_proj(joined)
        return output


class QueryAttention(_Attention):
    """Attention whose keys and values belong to another model or layer: queries only."""

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[batch, 1, rows, hidden] -> the same."""
        return self.attend(x, context)


class CachedAttention(_Attention):
    """Attention that also makes its rows' own keys and values and puts them behind those of earlier rows."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, eps: float) -> None:
        super().__init__(hidden_size, num_heads, head_dim, eps)
        self.num_kv_heads = num_kv_heads
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.k_norm = RmsNorm(head_dim, eps)
        self.v_norm = UnitNorm(head_dim, eps)

    def forward(self, x: Tensor, past: AttentionContext) -> tuple[Tensor, KeysValues, KeysValues]:
        """x [batch, 1, rows, hidden] -> (the same, keys and values of these rows, those of `past` and these rows).

        `past` holds the keys and values of `window` earlier rows; its mask covers window + rows.
        """
        batch, _, rows, _ = x.shape
        heads = (batch, rows, self.num_kv_heads, self.head_dim)
        keys = _swap_rows_and_heads(self.k_norm(self.k_proj(x).reshape(heads)))
        keys = rotate(keys, past.cos, past.sin).transpose(2, 3)
        values = _swap_rows_and_heads(self.v_norm(self.v_proj(x).reshape(heads)))
        new = KeysValues(keys, values)
        joined = KeysValues(past.keys, past.values).followed_by(new)
        return self.attend(x, replace(past, keys=joined.keys, values=joined.values)), new, joined


def grouped_attention(query: Tensor, context: AttentionContext) -> Tensor:
    """Softmax attention of query [batch, heads, rows, head_dim] over the context; heads of a group share one K and V.

    The heads of a group are folded into the row axis: no key or value is repeated.
    """
    batch, heads, rows, head_dim = query.shape
    kv_heads, window = context.values.shape[1], context.values.shape[2]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * rows, head_dim)
    scores = torch.matmul(grouped, context.keys).reshape(batch, heads, rows, window)
    weights = torch.softmax(scores + context.mask, dim=-1)
    attended = torch.matmul(weights.reshape(batch, kv_heads, heads // kv_heads * rows, window), context.values)
    return attended.reshape(batch, heads, rows, head_dim)


def _swap_rows_and_heads(x: Tensor) -> Tensor:
    # With one row the transpose moves nothing: a reshape is free on the NPU.
    batch, first, second, width = x.shape
    return x.reshape(batch, second, first, width) if 1 in (first, second) else x.transpose(1, 2)


class GatedMlp(nn.Module):
    """down(gelu_tanh(gate x) * up x)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 1, rows, hidden] -> the same."""
        output: Tensor = self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
        return output
