"""Small checkpoints of true architecture, written by transformers, and damaged files made by hand."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOCAB_SIZE = 64
SLIDING, FULL = "sliding_attention", "full_attention"


def text_config(**changes: Any) -> dict[str, Any]:
    """A text config in the spelling of the released files (`global_head_dim`, no `per_layer_config`)."""
    return {
        "model_type": "gemma4_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 12,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 4,
        "sliding_window": 8,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "eos_token_id": 1,
        **changes,
    }


def assistant_config(text_changes: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny head."""
    return {
        "model_type": "gemma4_assistant",
        "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": 20,
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": text_config(**(text_changes or {})),
        **changes,
    }


def assistant_model(config: dict[str, Any]) -> Gemma4AssistantForCausalLM:
    """transformers' own model with telling norms and layer scalars (a fresh one has 1.0 everywhere)."""
    torch.manual_seed(1)
    model = Gemma4AssistantForCausalLM(Gemma4AssistantConfig.from_dict(config))
    model.eval()
    for name, tensor in model.state_dict().items():
        if name.endswith("token_ordering"):
            tensor.copy_(torch.randperm(len(tensor)))
        elif tensor.dim() == 1:
            tensor.uniform_(0.3, 0.9)
    return model


def write_assistant(folder: Path, config: dict[str, Any], dtype: torch.dtype, shard_size: str = "1GB") -> Any:
    """Save a tiny head with transformers, config.json in the released spelling; returns the model in `dtype`."""
    model: Any = assistant_model(config)
    model.to(dtype)
    model.save_pretrained(folder, max_shard_size=shard_size)
    (folder / "config.json").write_text(json.dumps(config))
    return model


def write_verifier(folder: Path, dtype: torch.dtype) -> Any:
    """Save a tiny dense verifier with transformers; returns it as transformers loads it."""
    torch.manual_seed(2)
    config = Gemma4TextConfig(**{k: v for k, v in text_config(num_kv_shared_layers=0).items() if k != "model_type"})
    model: Any = Gemma4ForCausalLM(config)
    model.to(dtype).save_pretrained(folder)
    return Gemma4ForCausalLM.from_pretrained(folder)


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrite model.safetensors with `change` applied to its tensors."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def safetensors_bytes(header: object, data: bytes) -> bytes:
    """A safetensors file with any header: length, JSON, data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
