"""The MTP head as a static graph: one drafting step for one row, or for many rows at once in training.

Source: transformers' models/gemma4_assistant. The head has no keys and values of its own; it reads those of the
verifier's last sliding and last full layer. Its state for the next step is `hidden`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from calibration.states import kind_of_layer_type
from export.graphs.blocks import AttentionContext, GatedMlp, QueryAttention, RmsNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from export.checkpoint.mtp import LayerShape, MtpConfig

KINDS = ("sliding", "full")


@dataclass(frozen=True)
class MtpInputs:
    """Shapes of one step's inputs: one row, `window` keys of each kind."""

    config: MtpConfig
    window: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Input name -> shape, in the order of the graph's inputs."""
        width = self.config.backbone_hidden_size
        shapes: dict[str, tuple[int, ...]] = {"embedding": (1, 1, 1, width), "hidden": (1, 1, 1, width)}
        for kind in KINDS:
            layer = layer_of_kind(self.config, kind)
            heads, dim = layer.num_key_value_heads, layer.head_dim
            shapes[f"keys_{kind}"] = (1, heads, dim, self.window)
            shapes[f"values_{kind}"] = (1, heads, self.window, dim)
            shapes[f"mask_{kind}"] = (1, 1, 1, self.window)
            shapes[f"cos_{kind}"] = shapes[f"sin_{kind}"] = (1, 1, 1, dim)
        return shapes


def layer_of_kind(config: MtpConfig, kind: str) -> LayerShape:
    """The shape shared by all layers of a kind ("sliding" or "full")."""
    return next(layer for layer in config.layers if kind_of_layer_type(layer.kind) == kind)


class MtpLayer(nn.Module):
    """One Gemma 4 decoder layer with queries only: sandwich norms and the layer scalar at the end."""

    def __init__(self, config: MtpConfig, shape: LayerShape) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.kind = kind_of_layer_type(shape.kind)
        self.self_attn = QueryAttention(hidden, config.num_attention_heads, shape.head_dim, eps)
        self.mlp = GatedMlp(hidden, config.intermediate_size)
        self.input_layernorm = RmsNorm(hidden, eps)
        self.post_attention_layernorm = RmsNorm(hidden, eps)
        self.pre_feedforward_layernorm = RmsNorm(hidden, eps)
        self.post_feedforward_layernorm = RmsNorm(hidden, eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    layer_scalar: Tensor

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[batch, 1, rows, hidden] -> the same."""
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), context))
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar


class MtpHead(nn.Module):
    """One chain step: (embedding, hidden, contexts) -> (next hidden, raw logits).

    embedding and hidden [batch, 1, rows, backbone_hidden_size]: the verifier's scaled embedding of the token and the
    hidden state behind it; next hidden has the same shape; logits [batch, 1, rows, vocabulary], not softcapped (the
    reference does not softcap the head either).
    """

    def __init__(self, config: MtpConfig) -> None:
        super().__init__()
        self.config = config
        self.pre_projection = nn.Linear(2 * config.backbone_hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList(MtpLayer(config, shape) for shape in config.layers)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_projection = nn.Linear(config.hidden_size, config.backbone_hidden_size, bias=False)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        embedding: Tensor,
        hidden: Tensor,
        keys_sliding: Tensor,
        values_sliding: Tensor,
        mask_sliding: Tensor,
        cos_sliding: Tensor,
        sin_sliding: Tensor,
        keys_full: Tensor,
        values_full: Tensor,
        mask_full: Tensor,
        cos_full: Tensor,
        sin_full: Tensor,
    ) -> tuple[Tensor, Tensor]:
        contexts = {
            "sliding": AttentionContext(keys_sliding, values_sliding, mask_sliding, cos_sliding, sin_sliding),
            "full": AttentionContext(keys_full, values_full, mask_full, cos_full, sin_full),
        }
        x = self.pre_projection(torch.cat([embedding, hidden], dim=-1))
        for layer in self.layers:
            assert isinstance(layer, MtpLayer)
            x = layer(x, contexts[layer.kind])
        x = self.norm(x)
        return self.post_projection(x), self.lm_head(x)


def load_mtp_head(config: MtpConfig, state: Mapping[str, Tensor]) -> MtpHead:
    """The head in float32 with a checkpoint's tensors (transformers' names); every tensor must find its place."""
    with torch.device("meta"):
        head = MtpHead(config)
    ours = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    ours["lm_head.weight"] = ours.pop("embed_tokens.weight")
    # The centroid head scores a subset of the vocabulary; the graph scores its whole keep set with the same rows.
    ours = {name: tensor for name, tensor in ours.items() if not name.startswith("masked_embedding.")}
    head.load_state_dict(ours, strict=True, assign=True)
    return head.requires_grad_(False).eval()
