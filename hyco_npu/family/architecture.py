"""Configurations of the three embedded models: the real architectures in small.

What is scaled down: widths, depths, vocabulary, window. What is kept: MoE in parallel with the dense MLP, `k_eq_v` on
full-attention layers, several sliding layers per full one, softcap 30, per-layer embeddings, KV sharing, double-wide
MLP in the sharing layers, a head whose layers all read the verifier's keys and values.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    PreTrainedModel,
)

M = TypeVar("M", bound=PreTrainedModel)

VOCAB_SIZE = 2048
SLIDING_WINDOW = 64
_SLIDING, _FULL = "sliding_attention", "full_attention"
_INITIAL_LAYER_SCALAR = 0.8
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "sliding_window": SLIDING_WINDOW,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 2048,
    "bos_token_id": 2,
    "eos_token_id": [1, 5],
    "pad_token_id": 0,
}


def verifier_config() -> Gemma4TextConfig:
    """A 26B-A4B in small: MoE beside the dense MLP, `attention_k_eq_v`, no per-layer input, tied embeddings."""
    return _text_config(
        hidden_size=192,
        intermediate_size=192,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=48,
        global_head_dim=96,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        layer_types=[_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=128,
    )


def mtp_config() -> Gemma4AssistantConfig:
    """A 26B-A4B-it-assistant in small: 4 layers [sliding x3, full], all KV-shared, dense tied head."""
    text = _text_config(
        final_logit_softcapping=None,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=48,
        global_head_dim=96,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        layer_types=[_SLIDING, _SLIDING, _SLIDING, _FULL],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        num_kv_shared_layers=4,
    )
    return Gemma4AssistantConfig(text_config=text, backbone_hidden_size=192, use_ordered_embeddings=False)


def slm_config() -> Gemma4TextConfig:
    """An E2B in small: per-layer embeddings, the upper half KV-shared with double-wide MLPs, untied head."""
    return _text_config(
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        global_head_dim=64,
        layer_types=[_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=VOCAB_SIZE,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        tie_word_embeddings=False,
    )


def _text_config(**fields: Any) -> Gemma4TextConfig:
    return Gemma4TextConfig(**(_COMMON | fields))


def build_verifier() -> Gemma4ForCausalLM:
    """A freshly initialised verifier, float32."""
    model: Gemma4ForCausalLM = Gemma4ForCausalLM._from_config(
        verifier_config(), attn_implementation="sdpa", experts_implementation="eager", dtype=torch.float32
    )
    return _initialised(model)


def build_mtp() -> Gemma4AssistantForCausalLM:
    """A freshly initialised MTP head, float32."""
    model: Gemma4AssistantForCausalLM = Gemma4AssistantForCausalLM._from_config(
        mtp_config(), attn_implementation="sdpa", dtype=torch.float32
    )
    return _initialised(model)


def build_slm() -> Gemma4ForCausalLM:
    """A freshly initialised SLM, float32."""
    model: Gemma4ForCausalLM = Gemma4ForCausalLM._from_config(
        slm_config(), attn_implementation="sdpa", dtype=torch.float32
    )
    return _initialised(model)


def _initialised(model: M) -> M:
    # Attention scaling is 1.0 in Gemma 4: the query norm has to carry 1/sqrt(head_dim) from the start.
    for name, parameter in model.named_parameters():
        if name.endswith("q_norm.weight"):
            nn.init.constant_(parameter, parameter.numel() ** -0.5)
    # Real scalars lie below 1. The last one hardly trains (the final norm undoes it), so none may start at 1.
    for module in model.modules():
        scalar = getattr(module, "layer_scalar", None)
        if isinstance(scalar, torch.Tensor):
            nn.init.constant_(scalar, _INITIAL_LAYER_SCALAR)
    return model


def layer_scalars_as_parameters(model: nn.Module, trainable: bool) -> None:
    """Turn every `layer_scalar` buffer into a parameter (`trainable`) or back: transformers never trains them."""
    for module in model.modules():
        scalar = getattr(module, "layer_scalar", None)
        if not isinstance(scalar, torch.Tensor):
            continue
        value = scalar.detach().clone()
        del module.layer_scalar
        if trainable:
            module.layer_scalar = nn.Parameter(value)
        else:
            module.register_buffer("layer_scalar", value)
