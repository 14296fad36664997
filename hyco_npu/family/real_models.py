"""The three real models as lists of tensors: names, shapes, types and how to fill them at random.

Only the language part is listed (a drafter never sees an image or a sound); a test holds every list against
transformers' own classes on the meta device. Dimensions: docs of Gemma 4 26B-A4B, its assistant and E2B QAT mobile.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB_SIZE = 262_144
_SLIDING, _FULL = "sliding_attention", "full_attention"
_HEAD_DIM = {_SLIDING: 256, _FULL: 512}
_LANGUAGE = "model.language_model."

GENERATION_CONFIG: dict[str, Any] = {
    "bos_token_id": 2,
    "do_sample": True,
    "eos_token_id": [1, 106, 50],
    "pad_token_id": 0,
    "temperature": 1.0,
    "top_k": 64,
    "top_p": 0.95,
}
_COMMON_TEXT: dict[str, Any] = {
    "model_type": "gemma4_text",
    "dtype": "bfloat16",
    "vocab_size": VOCAB_SIZE,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131_072,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "rope_parameters": {
        _FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
        _SLIDING: {"rope_theta": 10_000.0, "rope_type": "default"},
    },
}

BIT_WIDTHS: dict[str, int] = {
    r"^lm_head$": 2,
    r"embed_tokens$": 2,
    r"embed_tokens_per_layer$": 4,
    r"layers\.(\d|1[0-4])\.mlp\.": 4,
    r"\.mlp\.": 2,
    r"\.per_layer_input_gate$": 8,
    r"\.per_layer_projection$": 8,
    r"\.self_attn\.": 4,
}
"""E2B QAT mobile: module-name regex -> bits of its weights, the first match wins."""


@dataclass(frozen=True)
class Normal:
    """Gaussian values around 0."""

    std: float


@dataclass(frozen=True)
class Uniform:
    """Evenly spread values."""

    low: float
    high: float


@dataclass(frozen=True)
class Codes:
    """Quantised weights of `bits` (2, 4: packed, stored with an offset; 8: plain), even over -(2^(bits-1) - 1) and up.

    The lowest code stays unused: with it the weights have a mean below 0, which a deep network blows up until every
    activation sits at its clip and all logits are equal.
    """

    bits: int

    @property
    def std(self) -> float:
        """Standard deviation of the codes' values."""
        levels = 2**self.bits - 1
        return math.sqrt((levels**2 - 1) / 12)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a checkpoint file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Normal | Uniform | Codes

    @property
    def size_bytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class RealModel:
    """A checkpoint's configuration and tensors, in file order."""

    config: dict[str, Any]
    tensors: tuple[TensorSpec, ...]


def assistant_26b() -> RealModel:
    """`gemma-4-26B-A4B-it-assistant`: 4 layers with queries only; the output layer is tied and not stored."""
    hidden, backbone, kinds = 1024, 2816, [_SLIDING, _SLIDING, _SLIDING, _FULL]
    text = _COMMON_TEXT | {
        "hidden_size": hidden,
        "intermediate_size": 8192,
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": len(kinds),
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "tie_word_embeddings": True,
    }
    config = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": backbone,
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": text,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "pre_projection.weight": (hidden, 2 * backbone),
        "post_projection.weight": (backbone, hidden),
        "model.embed_tokens.weight": (VOCAB_SIZE, hidden),
    }
    for index, kind in enumerate(kinds):
        for name, shape in _layer_shapes(hidden, 8192, 16, _HEAD_DIM[kind]).items():
            shapes[f"model.layers.{index}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    return RealModel(config, tuple(_plain(name, shape) for name, shape in shapes.items()))


def verifier_26b() -> RealModel:
    """`gemma-4-26B-A4B-it`, language part: 30 layers, 128 experts beside a dense MLP, 50 GB in BF16."""
    hidden, kinds = 2816, [_FULL if i % 6 == 5 else _SLIDING for i in range(30)]
    text = _COMMON_TEXT | {
        "hidden_size": hidden,
        "intermediate_size": 2112,
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "sliding_window": 1024,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
        "tie_word_embeddings": True,
    }
    specs = [_plain(f"{_LANGUAGE}embed_tokens.weight", (VOCAB_SIZE, hidden))]
    for index, kind in enumerate(kinds):
        shapes = _layer_shapes(hidden, 2112, 16, _HEAD_DIM[kind]) | _key_shapes(hidden, kind) | _expert_shapes(hidden)
        specs += [_plain(f"{_LANGUAGE}layers.{index}.{name}", shape) for name, shape in shapes.items()]
    specs.append(_plain(f"{_LANGUAGE}norm.weight", (hidden,)))
    return RealModel(_conditional(text), tuple(specs))


def e2b_qat_mobile() -> RealModel:
    """`gemma-4-E2B-it` QAT mobile, language part: 2/4/8-bit weights in transformers' `quant_method: gemma` storage.

    Layers 15-34 read the keys and values of 13 (sliding) and 14 (full) and store neither weights nor scales for them.
    """
    hidden, kinds, owners, ple = 1536, [_FULL if i % 5 == 4 else _SLIDING for i in range(35)], 15, 256
    text = _COMMON_TEXT | {
        "hidden_size": hidden,
        "intermediate_size": 6144,
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": len(kinds) - owners,
        "use_double_wide_mlp": True,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": ple,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "tie_word_embeddings": False,
    }
    config = _conditional(text) | {
        "quantization_config": {
            "quant_method": "gemma",
            "num_bits": 4,
            "quantize_embeddings": True,
            "module_quant_configs": {pattern: {"num_bits": bits} for pattern, bits in BIT_WIDTHS.items()},
            "modules_to_not_convert": ["per_layer_model_projection"],
        }
    }
    specs = list(_table("embed_tokens", hidden, 1)) + list(
        _table("embed_tokens_per_layer", len(kinds) * ple, len(kinds))
    )
    specs.append(_plain(f"{_LANGUAGE}per_layer_model_projection.weight", (len(kinds) * ple, hidden)))
    specs.append(_plain(f"{_LANGUAGE}per_layer_projection_norm.weight", (ple,)))
    for index, kind in enumerate(kinds):
        shapes = _layer_shapes(hidden, 6144 if index < owners else 12288, 8, _HEAD_DIM[kind])
        shapes |= _per_layer_input_shapes(hidden, ple)
        if index < owners:
            shapes |= _owner_shapes(hidden, _HEAD_DIM[kind])
            specs += [_scalar(f"{_LANGUAGE}layers.{index}.self_attn.{kv}_cache_scale") for kv in "kv"]
        for name, shape in shapes.items():
            specs += _quantized(f"{_LANGUAGE}layers.{index}.{name}", shape)
    specs.append(_plain(f"{_LANGUAGE}norm.weight", (hidden,)))
    specs += _quantized("lm_head.weight", (VOCAB_SIZE, hidden))
    return RealModel(config, tuple(specs))


REAL_MODELS: dict[str, Callable[[], RealModel]] = {
    "26b-a4b-assistant": assistant_26b,
    "e2b-qat-mobile": e2b_qat_mobile,
    "26b-a4b": verifier_26b,
}


def _conditional(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        "vision_config": None,
        "audio_config": None,
    }


def _layer_shapes(hidden: int, wide: int, heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    """What every layer has: sandwich norms, the scalar, queries, a gated MLP."""
    return {
        "layer_scalar": (1,),
        "self_attn.q_proj.weight": (heads * head_dim, hidden),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.o_proj.weight": (hidden, heads * head_dim),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "pre_feedforward_layernorm.weight": (hidden,),
        "post_feedforward_layernorm.weight": (hidden,),
    }


def _key_shapes(hidden: int, kind: str) -> dict[str, tuple[int, ...]]:
    """The 26B's keys and values; on full layers the values are the keys (`attention_k_eq_v`)."""
    if kind == _FULL:
        return {"self_attn.k_norm.weight": (512,), "self_attn.k_proj.weight": (2 * 512, hidden)}
    return {
        "self_attn.k_norm.weight": (256,),
        "self_attn.k_proj.weight": (8 * 256, hidden),
        "self_attn.v_proj.weight": (8 * 256, hidden),
    }


def _expert_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    experts, wide = 128, 704
    return {
        "router.scale": (hidden,),
        "router.per_expert_scale": (experts,),
        "router.proj.weight": (experts, hidden),
        "experts.gate_up_proj": (experts, 2 * wide, hidden),
        "experts.down_proj": (experts, hidden, wide),
        "post_feedforward_layernorm_1.weight": (hidden,),
        "post_feedforward_layernorm_2.weight": (hidden,),
        "pre_feedforward_layernorm_2.weight": (hidden,),
    }


def _owner_shapes(hidden: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    return {
        "self_attn.k_norm.weight": (head_dim,),
        "self_attn.k_proj.weight": (head_dim, hidden),
        "self_attn.v_proj.weight": (head_dim, hidden),
    }


def _per_layer_input_shapes(hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        "per_layer_input_gate.weight": (width, hidden),
        "per_layer_projection.weight": (hidden, width),
        "post_per_layer_input_norm.weight": (hidden,),
    }


def _plain(name: str, shape: tuple[int, ...]) -> TensorSpec:
    """A BF16 tensor; its filling follows from what it is."""
    fill: Normal | Uniform
    if name.endswith("layer_scalar"):
        fill = Uniform(0.3, 0.9)
    elif name.endswith("q_norm.weight"):
        # Attention scaling is 1.0: the query norm carries 1/sqrt(head_dim), or every softmax would saturate.
        fill = Uniform(0.8 * shape[0] ** -0.5, 1.2 * shape[0] ** -0.5)
    elif len(shape) == 1:
        fill = Uniform(0.8, 1.2)
    else:
        fill = Normal(shape[-1] ** -0.5)
    return TensorSpec(name, shape, torch.bfloat16, fill)


def _scalar(name: str) -> TensorSpec:
    return TensorSpec(name, (), torch.float32, Uniform(0.04, 0.08))


def _scales(name: str, shape: tuple[int, ...], bits: int, width: int) -> TensorSpec:
    """Scales that give weights of std 1/sqrt(width)."""
    scale = width**-0.5 / Codes(bits).std
    return TensorSpec(name, shape, torch.float32, Uniform(0.8 * scale, 1.2 * scale))


def _codes(name: str, rows: int, width: int, bits: int) -> TensorSpec:
    if bits == 8:
        return TensorSpec(name, (rows, width), torch.int8, Codes(bits))
    return TensorSpec(name, (rows, width * bits // 8), torch.uint8, Codes(bits))


def _bits(module: str) -> int | None:
    return next((bits for pattern, bits in BIT_WIDTHS.items() if re.search(pattern, module)), None)


def _quantized(name: str, shape: tuple[int, ...]) -> Iterator[TensorSpec]:
    """A linear's stored tensors: codes, per-row scales, two activation scales; or the plain tensor if it keeps BF16."""
    module = name.removesuffix(".weight")
    bits = _bits(module)
    if bits is None or len(shape) != 2:
        yield _plain(name, shape)
        return
    yield _codes(name, *shape, bits)
    yield _scales(f"{module}.weight_scale", (shape[0], 1), bits, shape[1])
    yield _scalar(f"{module}.input_activation_scale")
    yield _scalar(f"{module}.output_activation_scale")


def _table(name: str, width: int, groups: int) -> Iterator[TensorSpec]:
    """An embedding table's stored tensors; `groups` scales per row, each for width / groups values."""
    module = f"{_LANGUAGE}{name}"
    bits = _bits(module)
    assert bits is not None
    yield _codes(f"{module}.embedding_quantized", VOCAB_SIZE, width, bits)
    yield _scales(f"{module}.embedding_scale", (VOCAB_SIZE, groups), bits, width // groups)
