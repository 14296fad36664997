"""An MTP head's checkpoint (`gemma4_assistant`): its shape as transformers resolves it, and its tensors.

The configuration goes through transformers' own class, because per-layer head sizes, the key-value heads of full
layers and RoPE defaults are resolved there, and an old spelling (`global_head_dim`) must give the same model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import Gemma4AssistantConfig

from export.checkpoint.config import CONFIG_FILE, read_config
from export.checkpoint.reader import CheckpointReader
from export.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

MODEL_TYPE = "gemma4_assistant"
KINDS = ("sliding_attention", "full_attention")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ORDERING = "masked_embedding.token_ordering"
_COMPARED_ROWS = 8192


@dataclass(frozen=True)
class LayerShape:
    """One layer: `kind` is "sliding_attention" or "full_attention"; the key-value heads are the verifier's."""

    kind: str
    head_dim: int
    num_key_value_heads: int


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one kind of layer; `rope_type` is "default" or "proportional"."""

    kind: str
    theta: float
    rope_type: str
    partial_rotary_factor: float


@dataclass(frozen=True)
class CentroidShape:
    """The centroid head of some sizes: `top_k` of `count` centroids are scored, each vocab_size / count tokens."""

    count: int
    top_k: int


@dataclass(frozen=True)
class MtpConfig:
    """What the static graph of a head must know. `centroids` is there exactly with `use_ordered_embeddings`."""

    hidden_size: int
    backbone_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    layers: tuple[LayerShape, ...]
    ropes: tuple[RopeSpec, ...]
    vocab_size: int
    rms_norm_eps: float
    sliding_window: int
    use_ordered_embeddings: bool
    centroids: CentroidShape | None = None

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint but the tied output layer: transformers' name -> shape."""
        hidden, backbone = self.hidden_size, self.backbone_hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "pre_projection.weight": (hidden, 2 * backbone),
            "post_projection.weight": (backbone, hidden),
            _EMBEDDING: (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        for index, layer in enumerate(self.layers):
            for name, shape in self._layer_shapes(layer).items():
                shapes[f"model.layers.{index}.{name}"] = shape
        if self.centroids is not None:
            shapes["masked_embedding.centroids.weight"] = (self.centroids.count, hidden)
            shapes[_ORDERING] = (self.vocab_size,)
        return shapes

    def _layer_shapes(self, layer: LayerShape) -> dict[str, tuple[int, ...]]:
        hidden, wide, queries = self.hidden_size, self.intermediate_size, self.num_attention_heads * layer.head_dim
        return {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "pre_feedforward_layernorm.weight": (hidden,),
            "post_feedforward_layernorm.weight": (hidden,),
            "layer_scalar": (1,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "self_attn.q_norm.weight": (layer.head_dim,),
            "mlp.gate_proj.weight": (wide, hidden),
            "mlp.up_proj.weight": (wide, hidden),
            "mlp.down_proj.weight": (hidden, wide),
        }


@dataclass(frozen=True)
class MtpCheckpoint:
    """A head whose files, tensors and shapes were checked against its configuration."""

    config: MtpConfig
    reader: CheckpointReader

    def state_dict(self) -> dict[str, torch.Tensor]:
        """transformers' names -> float32 tensors (the centroid head's token_ordering stays int64).

        "lm_head.weight" is the embedding's own tensor. Raises CheckpointError for a value that is not finite, an output
        layer that differs from the embedding it is tied to, and a token_ordering that is no permutation.
        """
        state = {name: self._load(name) for name in self.config.tensor_shapes()}
        if _HEAD in self.reader:
            self._check_tied(state[_EMBEDDING])
        return state | {_HEAD: state[_EMBEDDING]}

    def _load(self, name: str) -> torch.Tensor:
        tensor = self.reader.load(name)
        if name == _ORDERING:
            return self._check_permutation(tensor.long())
        tensor = tensor.float()
        # A finite sum has finite terms only, and is quick; the sum of huge ones may overflow, so look twice.
        if not (tensor.sum().isfinite() or tensor.isfinite().all()):
            raise CheckpointError(f"{self.reader.file(name)}: tensor {name!r} holds NaN or infinite values")
        return tensor

    def _check_permutation(self, ordering: torch.Tensor) -> torch.Tensor:
        if not torch.equal(ordering.sort().values, torch.arange(len(ordering))):
            raise CheckpointError(
                f"{self.reader.file(_ORDERING)}: tensor {_ORDERING!r} is no permutation of 0..{len(ordering) - 1}"
            )
        return ordering

    def _check_tied(self, embedding: torch.Tensor) -> None:
        for start in range(0, len(embedding), _COMPARED_ROWS):
            ids = torch.arange(start, min(start + _COMPARED_ROWS, len(embedding)))
            if not torch.equal(self.reader.rows(_HEAD, ids).float(), embedding[ids]):
                raise CheckpointError(
                    f"{self.reader.file(_HEAD)}: tensor {_HEAD!r} differs from {_EMBEDDING!r}, to which it is tied; "
                    "one of the two is stale"
                )


def read_mtp_checkpoint(folder: Path) -> MtpCheckpoint:
    """Open a head: config.json, then the headers of its weights, checked against each other; no weight is read yet.

    Raises CheckpointError naming file and tensor.
    """
    config = read_mtp_config(folder)
    reader = CheckpointReader(folder)
    expected = config.tensor_shapes()
    if _HEAD in reader:
        expected[_HEAD] = expected[_EMBEDDING]
    reader.require(expected)
    for name in expected:
        if reader.dtype(name).is_floating_point is (name == _ORDERING):
            raise CheckpointError(
                f"{reader.file(name)}: tensor {name!r} is stored as {reader.dtype(name)}; expected "
                f"{'whole numbers' if name == _ORDERING else 'unquantised floating-point weights'}"
            )
    return MtpCheckpoint(config, reader)


def read_mtp_config(folder: Path) -> MtpConfig:
    """The head's configuration alone. Raises CheckpointError naming config.json and the setting at fault."""
    path = folder / CONFIG_FILE
    raw = read_config(folder, MODEL_TYPE)
    if not isinstance(raw.get("text_config"), dict):
        raise CheckpointError(f"{path}: text_config is absent; it holds the head's dimensions")
    try:
        config = Gemma4AssistantConfig.from_dict(raw)
        result = _from_transformers(config)
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: transformers does not accept this configuration ({reason})") from error
    problem = _unsupported(config, result)
    if problem:
        raise CheckpointError(f"{path}: {problem}")
    return result


def _from_transformers(config: Any) -> MtpConfig:
    text = config.text_config
    kinds = tuple(text.layer_types)
    layers = tuple(
        LayerShape(kind, resolved.head_dim, resolved.num_key_value_heads)
        for kind, resolved in zip(kinds, text.per_layer_config, strict=True)
    )
    centroids = CentroidShape(config.num_centroids, config.centroid_intermediate_top_k)
    return MtpConfig(
        hidden_size=text.hidden_size,
        backbone_hidden_size=config.backbone_hidden_size,
        intermediate_size=text.intermediate_size,
        num_attention_heads=text.num_attention_heads,
        layers=layers,
        ropes=tuple(rope_spec(kind, text.rope_parameters[kind]) for kind in KINDS if kind in kinds),
        vocab_size=text.vocab_size,
        rms_norm_eps=text.rms_norm_eps,
        sliding_window=text.sliding_window,
        use_ordered_embeddings=config.use_ordered_embeddings,
        centroids=centroids if config.use_ordered_embeddings else None,
    )


def rope_spec(kind: str, parameters: dict[str, Any]) -> RopeSpec:
    """The rope of a layer kind as transformers resolved it from config.json."""
    return RopeSpec(
        kind=kind,
        theta=float(parameters["rope_theta"]),
        rope_type=parameters["rope_type"],
        partial_rotary_factor=float(parameters.get("partial_rotary_factor", 1.0)),
    )


def _unsupported(config: Any, head: MtpConfig) -> str | None:
    """What the graph could not reproduce, in words; None where it can."""
    text = config.text_config
    if not (config.tie_word_embeddings and text.tie_word_embeddings):
        return "tie_word_embeddings is false; heads with an output layer of their own are not supported"
    if text.hidden_activation != "gelu_pytorch_tanh":
        return f"hidden_activation is {text.hidden_activation!r}, only 'gelu_pytorch_tanh' is supported"
    if text.attention_bias:
        return "attention_bias is true, which is not supported"
    if text.use_bidirectional_attention == "all":
        return "use_bidirectional_attention is 'all', which is not supported"
    for kind in KINDS:
        shapes = {layer for layer in head.layers if layer.kind == kind}
        if len(shapes) != 1:
            return f"has {len(shapes)} shapes of {kind} layers; exactly one is supported, its keys come from one layer"
    for layer in head.layers:
        if head.num_attention_heads % layer.num_key_value_heads:
            return f"{head.num_attention_heads} heads cannot share {layer.num_key_value_heads} key-value heads evenly"
    for rope in head.ropes:
        if rope.rope_type not in ("default", "proportional"):
            return f"rope_type {rope.rope_type!r} of {rope.kind} is not supported; known are default and proportional"
    if head.centroids is not None and head.vocab_size % head.centroids.count:
        return f"a vocabulary of {head.vocab_size} cannot be cut into {head.centroids.count} centroids evenly"
    return None
