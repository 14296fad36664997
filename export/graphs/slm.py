"""The SLM (E2B) as a static graph: `rows` tokens at once against a window of earlier keys and values.

Source: transformers' models/gemma4 (Gemma4ForCausalLM). One definition for prefill rows, draft rows and training (any
batch; a window of 0 and a causal mask make it the whole model). Embeddings are looked up on the CPU and fed; masks,
cosines and sines are inputs (tree_feeds.py makes them); logits are raw, the softcap is the CPU's. Knows nothing of
quantisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibration.states import kind_of_layer_type
from export.checkpoint.slm_tensors import PER_LAYER_TABLE, TOKEN_TABLE, linear_shapes, vector_shapes
from export.errors import CheckpointError
from export.graphs.blocks import AttentionContext, CachedAttention, GatedMlp, KeysValues, QueryAttention, RmsNorm
from export.graphs.mtp import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from export.checkpoint.slm import SlmConfig, SlmLayer

_MEAN_FACTOR = 2.0**-0.5
"""Token part and projected part of the per-layer embeddings are added and scaled by this."""
_PREFIXES = ("model.language_model.", "model.")
_KEYS_VALUES = ("k_proj", "v_proj", "k_norm", "v_norm")
_PROJECTION_NORM = "per_layer_projection_norm.weight"


@dataclass(frozen=True)
class SlmInputs:
    """Names and shapes of the graph's boundary: `rows` tokens, `window` earlier ones (fewer for sliding layers)."""

    config: SlmConfig
    rows: int
    window: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Input name -> shape, in the order of the graph's inputs; caches are named after the layer that owns them."""
        config, rows = self.config, self.rows
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (1, 1, rows, config.hidden_size),
            "per_layer": (1, 1, rows, len(config.layers) * config.per_layer_width),
        }
        for kind, head_dim in head_dims(config).items():
            shapes[f"mask_{kind}"] = (1, 1, rows, self.slots(kind) + rows)
            shapes[f"cos_{kind}"] = shapes[f"sin_{kind}"] = (1, 1, rows, head_dim)
        for owner, (heads, head_dim) in cache_shapes(config).items():
            slots = self.slots(kind_of_owner(config, owner))
            shapes[f"past_keys_{owner}"] = (1, heads, head_dim, slots)
            shapes[f"past_values_{owner}"] = (1, heads, slots, head_dim)
        return shapes

    def slots(self, kind: str) -> int:
        """How many of the window's slots the layers of a kind are given: the last ones, of a cache that is longer.

        A sliding layer sees no further than its own window; `rows` more leave room for drafted rows that were stored.
        """
        return min(self.window, self.config.sliding_window + self.rows) if kind == "sliding" else self.window

    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Output name -> shape, in order: raw logits, then each owner's keys (transposed) and values of these rows."""
        shapes: dict[str, tuple[int, ...]] = {"logits": (1, 1, self.rows, self.config.vocab_size)}
        for owner, (heads, head_dim) in cache_shapes(self.config).items():
            shapes[f"new_keys_{owner}"] = (1, heads, head_dim, self.rows)
            shapes[f"new_values_{owner}"] = (1, heads, self.rows, head_dim)
        return shapes


def head_dims(config: SlmConfig) -> dict[str, int]:
    """Head dimension of each kind of layer that there is: "sliding" and "full", in this order."""
    found = {kind_of_layer_type(layer.kind): layer.head_dim for layer in config.layers}
    return {kind: found[kind] for kind in KINDS if kind in found}


def cache_shapes(config: SlmConfig) -> dict[int, tuple[int, int]]:
    """Layer that owns a cache -> (key-value heads, head dimension)."""
    layers = config.layers
    return {owner: (layers[owner].num_key_value_heads, layers[owner].head_dim) for owner in config.cache_owners}


def kind_of_owner(config: SlmConfig, owner: int) -> str:
    """Kind, "sliding" or "full", of the layers that read this owner's cache."""
    return kind_of_layer_type(config.layers[owner].kind)


def per_layer_factor(config: SlmConfig) -> float:
    """What a row of the per-layer table is multiplied by to be the input `per_layer`: sqrt(width) * 2^-0.5.

    sqrt(width) is the table's own embedding scale (16 for E2B); 2^-0.5 is moved in here from the sum behind it.
    """
    factor: float = config.per_layer_width**0.5 * _MEAN_FACTOR
    return factor


class SlmDecoderLayer(nn.Module):
    """One decoder layer: attention, MLP, per-layer embedding, each between norms, and the layer scalar at the end."""

    def __init__(self, config: SlmConfig, index: int) -> None:
        super().__init__()
        shape = config.layers[index]
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.kind, self.owner = kind_of_layer_type(shape.kind), shape.owner
        self.self_attn = _attention(config, shape, owns=shape.owner == index)
        self.mlp = GatedMlp(hidden, shape.intermediate_size)
        self.per_layer_input_gate = nn.Linear(hidden, config.per_layer_width, bias=False)
        self.per_layer_projection = nn.Linear(config.per_layer_width, hidden, bias=False)
        self.input_layernorm = RmsNorm(hidden, eps)
        self.post_attention_layernorm = RmsNorm(hidden, eps)
        self.pre_feedforward_layernorm = RmsNorm(hidden, eps)
        self.post_feedforward_layernorm = RmsNorm(hidden, eps)
        self.post_per_layer_input_norm = RmsNorm(hidden, eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    layer_scalar: Tensor

    def forward(
        self, x: Tensor, per_layer: Tensor, context: AttentionContext
    ) -> tuple[Tensor, KeysValues | None, KeysValues]:
        """x [batch, 1, rows, hidden], per_layer [batch, 1, rows, width] -> (x, new keys and values, all of them).

        `context` holds the past of a layer that owns its cache, and past and new of its owner for one that shares;
        the latter makes nothing new.
        """
        normed, new = self.input_layernorm(x), None
        if isinstance(self.self_attn, CachedAttention):
            attended, new, joined = self.self_attn(normed, context)
        else:
            attended, joined = self.self_attn(normed, context), KeysValues(context.keys, context.values)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        gate = F.gelu(self.per_layer_input_gate(x), approximate="tanh")
        x = x + self.post_per_layer_input_norm(self.per_layer_projection(gate * per_layer))
        return x * self.layer_scalar, new, joined


def _attention(config: SlmConfig, shape: SlmLayer, owns: bool) -> CachedAttention | QueryAttention:
    hidden, heads, eps = config.hidden_size, config.num_attention_heads, config.rms_norm_eps
    if owns:
        return CachedAttention(hidden, heads, shape.num_key_value_heads, shape.head_dim, eps)
    return QueryAttention(hidden, heads, shape.head_dim, eps)


class Slm(nn.Module):
    """Inputs in the order of `SlmInputs.shapes` -> outputs in that of `SlmInputs.output_shapes`.

    embedding [batch, 1, rows, hidden] is what the model's embedding layer returns, per_layer [batch, 1, rows,
    layers * width] the row of the per-layer table times `per_layer_factor`.
    """

    def __init__(self, config: SlmConfig) -> None:
        super().__init__()
        self.config = config
        hidden, width = config.hidden_size, config.per_layer_width
        self.per_layer_model_projection = nn.Linear(hidden, len(config.layers) * width, bias=False)
        # norm(s x, eps) = norm(x, eps / s^2): the projection's scale s = hidden^-0.5 costs no operator.
        self.per_layer_projection_norm = RmsNorm(width, config.rms_norm_eps * hidden)
        self.layers = nn.ModuleList(SlmDecoderLayer(config, index) for index in range(len(config.layers)))
        self.norm = RmsNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.vocab_size, bias=False)

    def forward(self, embedding: Tensor, per_layer: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        rest = iter(others)
        # Per kind mask, cosines and sines; per owner keys and values.
        rotations = {kind: (next(rest), next(rest), next(rest)) for kind in head_dims(self.config)}
        caches = {owner: KeysValues(next(rest), next(rest)) for owner in self.config.cache_owners}
        x, outputs = embedding, []
        for layer, of_layer in zip(self.layers, self._per_layer_inputs(embedding, per_layer), strict=True):
            assert isinstance(layer, SlmDecoderLayer)
            cache = caches[layer.owner]
            context = AttentionContext(cache.keys, cache.values, *rotations[layer.kind])
            # From here on the owner's entry holds past and new: that is what sharing layers read.
            x, new, caches[layer.owner] = layer(x, of_layer, context)
            if new is not None:
                outputs += [new.keys, new.values]
        return (self.lm_head(self.norm(x)), *outputs)

    def _per_layer_inputs(self, embedding: Tensor, per_layer: Tensor) -> tuple[Tensor, ...]:
        """One [batch, 1, rows, width] a layer: the projected embedding, normed, plus the token's own part."""
        batch, _, rows, width = per_layer.shape
        projected = self.per_layer_model_projection(embedding)
        grouped = projected.reshape(batch, rows, len(self.layers), self.config.per_layer_width)
        normed = self.per_layer_projection_norm(grouped).reshape(batch, 1, rows, width)
        return torch.split(normed + per_layer, self.config.per_layer_width, dim=-1)


def load_slm(config: SlmConfig, state: Mapping[str, Tensor]) -> Slm:
    """The SLM in float32 with a checkpoint's tensors (transformers' names, with or without `model.` in front).

    Embedding tables and the keys and values that some files store in sharing layers are not read. Raises
    CheckpointError naming tensors that are missing, unknown or of another shape.
    """
    ours = {_short_name(name): tensor for name, tensor in state.items()}
    ours = {name: tensor for name, tensor in ours.items() if not _unread(config, name)}
    expected: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in linear_shapes(config).items()}
    expected |= vector_shapes(config)
    problems = [f"{name} is missing" for name in expected if name not in ours]
    problems += [f"{name} is unknown" for name in ours if name not in expected]
    problems += [
        f"{name} is {list(ours[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in ours and tuple(ours[name].shape) != shape
    ]
    if problems:
        raise CheckpointError(f"the tensors are not those of this SLM's configuration: {'; '.join(problems[:5])}")
    floats = {name: tensor.float() for name, tensor in ours.items()}
    # The 2^-0.5 behind the sum of both parts, put into both: here and in `per_layer_factor`.
    floats[_PROJECTION_NORM] = floats[_PROJECTION_NORM] * _MEAN_FACTOR
    with torch.device("meta"):
        slm = Slm(config)
    slm.load_state_dict(floats, strict=True, assign=True)
    return slm.requires_grad_(False).eval()


def _short_name(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def _unread(config: SlmConfig, name: str) -> bool:
    sharing = [index for index, layer in enumerate(config.layers) if layer.owner != index]
    keys_values = {f"layers.{index}.self_attn.{part}.weight" for index in sharing for part in _KEYS_VALUES}
    return name.split(".")[0] in (TOKEN_TABLE, PER_LAYER_TABLE) or name in keys_values
