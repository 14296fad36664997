"""An SLM's checkpoint (E2B, `quant_method: gemma`): its shape as transformers resolves it, and its codes as stored.

Nothing is requantised: a weight is the file's own integers and scales. Modules are named without the file's prefix
("layers.3.self_attn.q_proj", "lm_head"). Knows no graph; slm_tensors.py says which tensors there are, gemma_bits.py
how wide their codes are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import Gemma4TextConfig

from export.checkpoint.config import CONFIG_FILE, read_config
from export.checkpoint.gemma_bits import BitMap, read_bit_map
from export.checkpoint.mtp import KINDS, RopeSpec, rope_spec
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.slm_tensors import (
    ACTIVATION_SCALES,
    CACHE_SCALES,
    PER_LAYER_TABLE,
    TOKEN_TABLE,
    expected_tensors,
    find_prefix,
    full_name,
    ignored_patterns,
    linear_shapes,
    table_shapes,
    vector_shapes,
)
from export.errors import CheckpointError
from quant.packing import unpack_offset

if TYPE_CHECKING:
    from pathlib import Path

MODEL_TYPES = ("gemma4", "gemma4_text")
"""With the language model's settings in text_config, or at the top."""
_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class SlmLayer:
    """One layer: `kind` as in KINDS; `owner` is the layer whose keys and values it reads, itself where it owns them."""

    kind: str
    head_dim: int
    num_key_value_heads: int
    intermediate_size: int
    owner: int


@dataclass(frozen=True)
class SlmConfig:
    """What the static graph of an SLM must know. `final_logit_softcapping` is None where there is none."""

    hidden_size: int
    num_attention_heads: int
    layers: tuple[SlmLayer, ...]
    ropes: tuple[RopeSpec, ...]
    vocab_size: int
    per_layer_vocab_size: int
    per_layer_width: int
    sliding_window: int
    rms_norm_eps: float
    final_logit_softcapping: float | None

    @property
    def cache_owners(self) -> tuple[int, ...]:
        """Layers that own a KV cache, rising; all others read one of theirs."""
        return tuple(index for index, layer in enumerate(self.layers) if layer.owner == index)


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """Codes int8 [rows, width] of `bits` bits and scale float32 [rows, groups], each for width / groups values.

    Linear layers have one group. Value = code * scale; codes lie in -2^(bits-1) .. 2^(bits-1) - 1.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    bits: int

    def dequantize(self) -> torch.Tensor:
        """The values, float32 [rows, width]."""
        width, groups = self.codes.shape[1], self.scale.shape[1]
        return self.codes.float() * self.scale.repeat_interleave(width // groups, dim=1)


@dataclass(frozen=True)
class SlmCheckpoint:
    """An SLM whose files, tensors, shapes and types were checked against its configuration; data is read when asked."""

    config: SlmConfig
    reader: CheckpointReader
    bits: BitMap
    prefix: str

    def bits_of(self, module: str) -> int | None:
        """Bits of a linear layer's weights; None where it keeps floats, which `floats` reads."""
        self._linear_shape(module)
        return self.bits.linear(full_name(self.prefix, module))

    def weight(self, module: str, rows: torch.Tensor | None = None) -> StoredWeight:
        """A quantised linear layer as stored: codes int8 [out, in], scale float32 [out, 1].

        `rows` int64 [n] takes these outputs only, in this order, without reading the rest (an output layer cut to its
        keep set). Raises CheckpointError for an unknown or unquantised module, a row outside, and scales not finite.
        """
        outputs, inputs = self._linear_shape(module)
        bits = self.bits_of(module)
        if bits is None:
            raise CheckpointError(
                f"{self.reader.folder}: {module!r} is not quantised; read its floats, it has no codes"
            )
        rows = torch.arange(outputs) if rows is None else _checked_ids(self.reader.folder, "row", rows, outputs)
        name = full_name(self.prefix, module)
        return self._stored((f"{name}.weight", f"{name}.weight_scale"), rows, inputs, bits)

    def floats(self, name: str) -> torch.Tensor:
        """A tensor that the checkpoint leaves unquantised, as float32: norms, layer scalars, unquantised linear layers.

        `name` has its suffix: "norm.weight". Raises CheckpointError for others and for values not finite.
        """
        module = name.removesuffix(".weight")
        known = name in vector_shapes(self.config)
        known |= name != module and module in linear_shapes(self.config) and self.bits_of(module) is None
        if not known:
            raise CheckpointError(
                f"{self.reader.folder}: has no unquantised tensor {name!r}; names are like 'norm.weight'"
            )
        return self._finite(full_name(self.prefix, name))

    def embedding_rows(self, ids: torch.Tensor) -> StoredWeight:
        """Rows of the token table for token ids int64 [n]: codes [n, hidden_size], not yet times sqrt(hidden_size).

        Only these rows are read. An id outside the table is a CheckpointError naming it; none wraps.
        """
        return self._table_rows(TOKEN_TABLE, ids)

    def per_layer_rows(self, ids: torch.Tensor) -> StoredWeight:
        """The same of the per-layer table: codes [n, layers * per_layer_width], scale [n, layers] or [n, 1]."""
        return self._table_rows(PER_LAYER_TABLE, ids)

    def activation_scales(self, module: str) -> tuple[float | None, float | None]:
        """Scales of a linear layer's input and output clip, clamp(round(x / s), -128, 127) * s; None is no clip.

        The file says 0 where it was not calibrated. Raises CheckpointError for one negative or not finite.
        """
        if self.bits_of(module) is None:
            return None, None
        first, second = (self._scalar(f"{module}.{name}") or None for name in ACTIVATION_SCALES)
        return first, second

    def cache_scales(self, layer: int) -> tuple[float, float]:
        """Scales of the 8-bit keys and values that `layer` reads: its own, or its owner's where it shares.

        A sharing layer's own scales, where the file has any, describe no cache (vllm-project/vllm#55559). Raises
        CheckpointError for a layer that does not exist and for a scale that is 0, negative or not finite.
        """
        if not 0 <= layer < len(self.config.layers):
            raise CheckpointError(f"{self.reader.folder}: has layers 0..{len(self.config.layers) - 1}, not {layer}")
        owner = self.config.layers[layer].owner
        names = [f"layers.{owner}.self_attn.{name}" for name in CACHE_SCALES]
        for name in names:
            if self._scalar(name) == 0.0:
                raise CheckpointError(f"{self._place(name)} is 0: its cache was not calibrated, 8 bits cannot hold it")
        return self._scalar(names[0]), self._scalar(names[1])

    def _linear_shape(self, module: str) -> tuple[int, int]:
        shape = linear_shapes(self.config).get(module)
        if shape is None:
            raise CheckpointError(
                f"{self.reader.folder}: has no linear layer {module!r}; names are like 'layers.0.mlp.up_proj'"
            )
        return shape

    def _table_rows(self, module: str, ids: torch.Tensor) -> StoredWeight:
        rows, width = table_shapes(self.config)[module]
        name = full_name(self.prefix, module)
        bits = self.bits.table(name)
        assert bits is not None, "checked on opening"
        ids = _checked_ids(self.reader.folder, f"{module} token id", ids, rows)
        return self._stored((f"{name}.embedding_quantized", f"{name}.embedding_scale"), ids, width, bits)

    def _stored(self, names: tuple[str, str], rows: torch.Tensor, width: int, bits: int) -> StoredWeight:
        codes = torch.empty(len(rows), width, dtype=torch.int8)
        # Unpacking needs several times a chunk's memory, so the whole is never unpacked at once.
        for start in range(0, len(rows), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            stored = self.reader.rows(names[0], rows[part])
            codes[part] = stored if bits == 8 else unpack_offset(stored, bits, width)
        scale = self.reader.rows(names[1], rows)
        if not bool(scale.isfinite().all()):
            raise CheckpointError(f"{self.reader.file(names[1])}: tensor {names[1]!r} holds NaN or infinite values")
        return StoredWeight(codes, scale, bits)

    def _finite(self, name: str) -> torch.Tensor:
        tensor = self.reader.load(name).float()
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{self.reader.file(name)}: tensor {name!r} holds NaN or infinite values")
        return tensor

    def _scalar(self, name: str) -> float:
        value = float(self.reader.load(full_name(self.prefix, name)))
        if not (math.isfinite(value) and value >= 0.0):
            raise CheckpointError(f"{self._place(name)} is {value}; a scale is a finite number, 0 or above")
        return value

    def _place(self, name: str) -> str:
        full = full_name(self.prefix, name)
        return f"{self.reader.file(full)}: tensor {full!r}"


def read_slm_checkpoint(folder: Path) -> SlmCheckpoint:
    """Open an SLM: config.json with its bit map, then the headers of its weights, checked against each other.

    No weight is read yet. Vision and audio tensors are skipped by name, keys and values of sharing layers may be there
    or not; anything else missing, unknown or of another shape or type is a CheckpointError naming file and tensor.
    """
    config = read_slm_config(folder)
    bits = read_bit_map(folder, read_config(folder, *MODEL_TYPES))
    reader = CheckpointReader(folder)
    expected = expected_tensors(config, bits, reader)
    reader.require({name: form.shape for name, form in expected.items()}, ignored_patterns(config, reader))
    for name, form in expected.items():
        if reader.dtype(name) not in form.dtypes:
            wanted = " or ".join(str(dtype) for dtype in form.dtypes)
            raise CheckpointError(
                f"{reader.file(name)}: tensor {name!r} is stored as {reader.dtype(name)}, but the bits in "
                f"{CONFIG_FILE} ask for {wanted}"
            )
    return SlmCheckpoint(config, reader, bits, find_prefix(reader))


def read_slm_config(folder: Path) -> SlmConfig:
    """The SLM's configuration alone. Raises CheckpointError naming config.json and the setting at fault."""
    path = folder / CONFIG_FILE
    raw = read_config(folder, *MODEL_TYPES)
    nested = raw["model_type"] == MODEL_TYPES[0]
    text = raw.get("text_config") if nested else raw
    if not isinstance(text, dict):
        raise CheckpointError(f"{path}: text_config is absent; it holds the language model's dimensions")
    try:
        config = Gemma4TextConfig.from_dict(text)
        # The whole model's flag decides for the whole model; both default to true.
        tied = raw.get("tie_word_embeddings", True) if nested else config.tie_word_embeddings
        problem = _unsupported(config, bool(tied))
        if problem is None:
            result = _from_transformers(config)
            problem = _inconsistent(result)
    except (StrictDataclassError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: transformers does not accept this configuration ({reason})") from error
    if problem is not None:
        raise CheckpointError(f"{path}: {problem}")
    return result


def _from_transformers(text: Any) -> SlmConfig:
    kinds, modes = tuple(text.layer_types), text.kv_sharing_modes
    # "store" marks the last owner of each kind, whose keys and values the "reuse" layers of that kind read.
    stores = {kind: index for index, (kind, mode) in enumerate(zip(kinds, modes, strict=True)) if mode == "store"}
    layers = tuple(
        SlmLayer(
            kind=kind,
            head_dim=text.per_layer_config[index].head_dim,
            num_key_value_heads=text.per_layer_config[index].num_key_value_heads,
            intermediate_size=text.intermediate_size * (2 if text.use_double_wide_mlp and mode == "reuse" else 1),
            owner=stores[kind] if mode == "reuse" else index,
        )
        for index, (kind, mode) in enumerate(zip(kinds, modes, strict=True))
    )
    softcap = text.final_logit_softcapping
    return SlmConfig(
        hidden_size=text.hidden_size,
        num_attention_heads=text.num_attention_heads,
        layers=layers,
        ropes=tuple(rope_spec(kind, text.rope_parameters[kind]) for kind in KINDS if kind in kinds),
        vocab_size=text.vocab_size,
        per_layer_vocab_size=text.vocab_size_per_layer_input,
        per_layer_width=text.hidden_size_per_layer_input,
        sliding_window=text.sliding_window,
        rms_norm_eps=text.rms_norm_eps,
        final_logit_softcapping=None if softcap is None else float(softcap),
    )


def _unsupported(text: Any, tied: bool) -> str | None:
    """What the graph could not reproduce, in words; None where it can."""
    if tied:
        return "tie_word_embeddings is true; the output layer must have codes of its own"
    if text.hidden_activation != "gelu_pytorch_tanh":
        return f"hidden_activation is {text.hidden_activation!r}, only 'gelu_pytorch_tanh' is supported"
    for name in ("attention_bias", "attention_k_eq_v", "enable_moe_block"):
        if getattr(text, name):
            return f"{name} is true, which is not supported in an SLM"
    if text.use_bidirectional_attention == "all":
        return "use_bidirectional_attention is 'all', which is not supported"
    if text.hidden_size_per_layer_input < 1:
        return f"hidden_size_per_layer_input is {text.hidden_size_per_layer_input}; an SLM has per-layer embeddings"
    if not 0 <= text.num_kv_shared_layers < text.num_hidden_layers:
        return (
            f"num_kv_shared_layers is {text.num_kv_shared_layers} of {text.num_hidden_layers} layers; at least one "
            "must own its keys and values"
        )
    return None


def _inconsistent(slm: SlmConfig) -> str | None:
    for index, layer in enumerate(slm.layers):
        owner = slm.layers[layer.owner]
        if (layer.head_dim, layer.num_key_value_heads) != (owner.head_dim, owner.num_key_value_heads):
            return f"layer {index} reads the cache of layer {layer.owner}, but its key-value heads have another shape"
        if slm.num_attention_heads % layer.num_key_value_heads:
            return f"{slm.num_attention_heads} heads cannot share {layer.num_key_value_heads} key-value heads evenly"
    for rope in slm.ropes:
        if rope.rope_type not in ("default", "proportional"):
            return f"rope_type {rope.rope_type!r} of {rope.kind} is not supported; known are default and proportional"
    return None


def _checked_ids(folder: Path, what: str, ids: torch.Tensor, count: int) -> torch.Tensor:
    if ids.dtype != torch.int64 or ids.ndim != 1:
        raise CheckpointError(f"{folder}: {what}s are {ids.dtype} {list(ids.shape)}; int64 [n] is needed")
    wrong = ids[(ids < 0) | (ids >= count)]
    if wrong.numel():
        raise CheckpointError(f"{folder}: {what} {int(wrong[0])} does not exist; they are 0..{count - 1}")
    return ids
