"""A tiny SLM checkpoint in the `quant_method: gemma` format, laid out by transformers' own modules, with random bytes.

No packing of ours takes part: every byte is random, and what it means is read off transformers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from transformers import (
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    GemmaQuantizationConfig,
)
from transformers.integrations.gemma_quant import replace_with_quant_layers

from tests.export.checkpoint.builders import FULL, SLIDING, VOCAB_SIZE

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, PLE, LAYERS, SHARING = 18, 16, 6, 3
"""18 is no multiple of 4: the last byte of a 2-bit row is half empty."""
OWNERS = (0, 1, 2, 1, 1, 2)
UNCALIBRATED = "layers.0.self_attn.q_proj.input_activation_scale"
BITS = {
    "^lm_head$": 2,
    "embed_tokens$": 2,
    "embed_tokens_per_layer$": 4,
    r"layers\.[0-2]\.mlp\.": 4,
    r"\.mlp\.": 2,
    r"\.per_layer_input_gate$": 8,
    r"\.per_layer_projection$": 8,
    r"\.self_attn\.": 4,
}


def quantization_config(**changes: Any) -> dict[str, Any]:
    return {
        "quant_method": "gemma",
        "num_bits": 4,
        "quantize_embeddings": True,
        "module_quant_configs": {pattern: {"num_bits": bits} for pattern, bits in BITS.items()},
        "modules_to_not_convert": ["per_layer_model_projection"],
        **changes,
    }


def slm_text_config(**changes: Any) -> dict[str, Any]:
    """E2B in small: full layers at 2 and 5, the upper three share, twice as wide there."""
    return {
        "model_type": "gemma4_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_hidden_layers": LAYERS,
        "layer_types": [SLIDING, SLIDING, FULL] * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_kv_shared_layers": SHARING,
        "use_double_wide_mlp": True,
        "sliding_window": 8,
        "hidden_size_per_layer_input": PLE,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        **changes,
    }


def slm_config(text_changes: dict[str, Any] | None = None, nested: bool = True, **changes: Any) -> dict[str, Any]:
    """config.json of the tiny SLM, whole model (`nested`) or language model alone."""
    text = slm_text_config(**(text_changes or {}))
    quantization = {"quantization_config": quantization_config()}
    if not nested:
        return text | {"architectures": ["Gemma4ForCausalLM"]} | quantization | changes
    return {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": None,
        "audio_config": None,
        **quantization,
        **changes,
    }


def fresh_model(config: dict[str, Any]) -> Any:
    """transformers' model for this config.json on the meta device, before any module is replaced."""
    with torch.device("meta"):
        if config["model_type"] == "gemma4":
            return Gemma4ForConditionalGeneration(Gemma4Config.from_dict(config))
        return Gemma4ForCausalLM(Gemma4TextConfig.from_dict(config))


def replaced_model(config: dict[str, Any]) -> Any:
    """The same with the modules that `quant_method: gemma` puts in."""
    model = fresh_model(config)
    settings = GemmaQuantizationConfig(**config["quantization_config"])
    return replace_with_quant_layers(model, settings, settings.modules_to_not_convert)


def slm_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random contents for every tensor that transformers expects, and cache scales for the owners."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in replaced_model(config).state_dict().items():
        if tensor.dtype in (torch.uint8, torch.int8):
            limits = torch.iinfo(tensor.dtype)
            tensors[name] = torch.randint(limits.min, limits.max + 1, tensor.shape, generator=generator).to(
                tensor.dtype
            )
        elif name.endswith("_scale"):
            tensors[name] = torch.rand(tensor.shape, generator=generator) * 0.1 + 0.05
        else:
            tensors[name] = (torch.rand(tensor.shape, generator=generator) * 0.6 + 0.3).bfloat16()
    prefix = prefix_of(config)
    tensors[prefix + UNCALIBRATED] = torch.tensor(0.0)
    for layer in range(LAYERS - SHARING):
        for kind, base in (("k", 0.2), ("v", 0.3)):
            tensors[f"{prefix}layers.{layer}.self_attn.{kind}_cache_scale"] = torch.tensor(base + layer)
    return tensors


def shared_key_tensors(prefix: str) -> dict[str, torch.Tensor]:
    """What the released E2B also stores in its sharing layers; nothing reads it."""
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS - SHARING, LAYERS):
        width = 16 if layer % 3 == 2 else 8
        for kind in "kv":
            attention = f"{prefix}layers.{layer}.self_attn."
            tensors[f"{attention}{kind}_proj.weight"] = torch.ones(width, HIDDEN // 2, dtype=torch.uint8)
            tensors[f"{attention}{kind}_proj.weight_scale"] = torch.ones(width, 1)
            tensors[f"{attention}{kind}_proj.input_activation_scale"] = torch.tensor(1.0)
            tensors[f"{attention}{kind}_proj.output_activation_scale"] = torch.tensor(1.0)
            tensors[f"{attention}{kind}_cache_scale"] = torch.tensor(1.0)
        tensors[f"{attention}k_norm.weight"] = torch.ones(width).bfloat16()
        tensors[f"{attention}v_norm.weight"] = torch.ones(width).bfloat16()
    return tensors


def prefix_of(config: dict[str, Any]) -> str:
    return "model.language_model." if config["model_type"] == "gemma4" else "model."


def write_slm(folder: Path, config: dict[str, Any] | None = None, **tensors: torch.Tensor) -> Path:
    """Write a checkpoint of `config` (the nested one by default); `tensors` are added or replaced."""
    config = slm_config() if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(slm_tensors(config) | tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
