"""Which tensors an SLM's `quant_method: gemma` checkpoint holds: names, shapes and types that follow from its config.

Modules are named here without the checkpoint's prefix ("layers.0.mlp.up_proj", "embed_tokens", "lm_head"), because
files come with two: `model.language_model.` and `model.`. Reads no data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from export.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from export.checkpoint.gemma_bits import BitMap
    from export.checkpoint.reader import CheckpointReader
    from export.checkpoint.slm import SlmConfig, SlmLayer

PREFIXES = ("model.language_model.", "model.")
HEAD, TOKEN_TABLE, PER_LAYER_TABLE = "lm_head", "embed_tokens", "embed_tokens_per_layer"
ACTIVATION_SCALES = ("input_activation_scale", "output_activation_scale")
CACHE_SCALES = ("k_cache_scale", "v_cache_scale")
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_OTHER_SENSES = r"^(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio|multi_modal_projector)\."


@dataclass(frozen=True)
class TensorForm:
    """Shape of a stored tensor and the types it may have."""

    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


def find_prefix(reader: CheckpointReader) -> str:
    """The prefix of the language model's tensors in this checkpoint, one of PREFIXES."""
    return next((p for p in PREFIXES if any(name.startswith(p) for name in reader.names)), PREFIXES[-1])


def full_name(prefix: str, name: str) -> str:
    """Name in the file of a module or tensor; the output layer stands outside the language model."""
    return name if name.split(".")[0] == HEAD else prefix + name


def linear_shapes(config: SlmConfig) -> dict[str, tuple[int, int]]:
    """Every linear layer: module -> (outputs, inputs). Sharing layers have no k_proj and v_proj."""
    hidden, ple = config.hidden_size, config.per_layer_width
    shapes = {HEAD: (config.vocab_size, hidden), "per_layer_model_projection": (len(config.layers) * ple, hidden)}
    for index, layer in enumerate(config.layers):
        wide, queries = layer.intermediate_size, config.num_attention_heads * layer.head_dim
        of_layer = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
            "per_layer_input_gate": (ple, hidden),
            "per_layer_projection": (hidden, ple),
        }
        if layer.owner == index:
            keys = layer.num_key_value_heads * layer.head_dim
            of_layer |= {"self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden)}
        shapes |= {f"layers.{index}.{name}": shape for name, shape in of_layer.items()}
    return shapes


def vector_shapes(config: SlmConfig) -> dict[str, tuple[int]]:
    """Norms and layer scalars: tensor name -> shape. The norm of the values has no weight."""
    shapes = {"norm.weight": (config.hidden_size,), "per_layer_projection_norm.weight": (config.per_layer_width,)}
    for index, layer in enumerate(config.layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer_vectors(config, layer).items()}
        if layer.owner == index:
            shapes[f"layers.{index}.self_attn.k_norm.weight"] = (layer.head_dim,)
    return shapes


def _layer_vectors(config: SlmConfig, layer: SlmLayer) -> dict[str, tuple[int]]:
    hidden = (config.hidden_size,)
    return {
        "layer_scalar": (1,),
        "self_attn.q_norm.weight": (layer.head_dim,),
        "input_layernorm.weight": hidden,
        "post_attention_layernorm.weight": hidden,
        "pre_feedforward_layernorm.weight": hidden,
        "post_feedforward_layernorm.weight": hidden,
        "post_per_layer_input_norm.weight": hidden,
    }


def table_shapes(config: SlmConfig) -> dict[str, tuple[int, int]]:
    """The two embedding tables: module -> (rows, values in a row)."""
    return {
        TOKEN_TABLE: (config.vocab_size, config.hidden_size),
        PER_LAYER_TABLE: (config.per_layer_vocab_size, len(config.layers) * config.per_layer_width),
    }


def expected_tensors(config: SlmConfig, bits: BitMap, reader: CheckpointReader) -> dict[str, TensorForm]:
    """Every tensor that must be in the file: full name -> form. Raises CheckpointError for tables without codes.

    Where the format allows two shapes (scales per row or per group, cache scales [] or [1]) the file's own is taken.
    """
    prefix = find_prefix(reader)
    forms: dict[str, TensorForm] = {}
    for module, shape in table_shapes(config).items():
        forms |= _table_forms(config, bits, reader, full_name(prefix, module), shape)
    for module, shape in linear_shapes(config).items():
        name = full_name(prefix, module)
        forms |= _linear_forms(name, shape, bits.linear(name))
    for name, vector in vector_shapes(config).items():
        forms[full_name(prefix, name)] = TensorForm(vector, FLOATS)
    for index in config.cache_owners:
        for scale in CACHE_SCALES:
            name = full_name(prefix, f"layers.{index}.self_attn.{scale}")
            forms[name] = TensorForm(_stored_or(reader, name, (), (1,)), (torch.float32,))
    return forms


def ignored_patterns(config: SlmConfig, reader: CheckpointReader) -> list[str]:
    """Regexes of tensors that may be there and are not read: other senses, keys and values of sharing layers.

    The released E2B stores k/v weights in all layers, its QAT form in the owners only (vllm-project/vllm#54917).
    """
    sharing = "|".join(str(index) for index, layer in enumerate(config.layers) if layer.owner != index)
    if not sharing:
        return [_OTHER_SENSES]
    scales = "|".join((*ACTIVATION_SCALES, "weight_scale", "weight"))
    parts = rf"[kv]_proj\.({scales})|[kv]_norm\.weight|[kv]_cache_scale"
    prefix = find_prefix(reader).replace(".", r"\.")
    return [_OTHER_SENSES, rf"^{prefix}layers\.({sharing})\.self_attn\.({parts})$"]


def _linear_forms(name: str, shape: tuple[int, int], bits: int | None) -> Iterator[tuple[str, TensorForm]]:
    if bits is None:
        yield f"{name}.weight", TensorForm(shape, FLOATS)
        return
    yield f"{name}.weight", _codes_form(shape, bits)
    yield f"{name}.weight_scale", TensorForm((shape[0], 1), (torch.float32,))
    # transformers leaves a scale that the file lacks at whatever was in memory, so both must be there; 0 means none.
    for scale in ACTIVATION_SCALES:
        yield f"{name}.{scale}", TensorForm((), (torch.float32,))


def _table_forms(
    config: SlmConfig, bits: BitMap, reader: CheckpointReader, name: str, shape: tuple[int, int]
) -> Iterator[tuple[str, TensorForm]]:
    table_bits = bits.table(name)
    if table_bits is None:
        raise CheckpointError(
            f"{bits.path}: {name!r} is not quantised (quantize_embeddings is {str(bits.quantize_embeddings).lower()}); "
            "only tables of codes are supported"
        )
    yield f"{name}.embedding_quantized", _codes_form(shape, table_bits)
    groups = len(config.layers) if name.endswith(PER_LAYER_TABLE) else 1
    scale = f"{name}.embedding_scale"
    stored = _stored_or(reader, scale, (shape[0], groups), (shape[0], 1))
    yield scale, TensorForm(stored, (torch.float32,))


def _codes_form(shape: tuple[int, int], bits: int) -> TensorForm:
    rows, width = shape
    if bits == 8:
        return TensorForm(shape, (torch.int8,))
    return TensorForm((rows, -(-width * bits // 8)), (torch.uint8,))


def _stored_or(reader: CheckpointReader, name: str, usual: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """`other` where the file stores the tensor so, else `usual`, against which it is then checked."""
    return other if name in reader and reader.shape(name) == other else usual
