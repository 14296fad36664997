"""Tiny random causal models, and what plain transformers says of a text: the reference of the verifier's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hyco_npu.decode.tree import DraftTree

WINDOW = 8
VOCABULARY = 120
_SLIDING, _FULL = "sliding_attention", "full_attention"
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "eos_token_id": [1, 5],
    "pad_token_id": 0,
}
_GEMMA4: dict[str, Any] = _COMMON | {
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": WINDOW,
    "layer_types": [_SLIDING, _SLIDING, _SLIDING, _FULL],
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}
_MOE = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
# per-layer embeddings and layers that reuse keys and values, as in E2B
_SHARED = {
    "attention_k_eq_v": False,
    "num_hidden_layers": 6,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": VOCABULARY,
}
_MIXED = {"sliding_window": WINDOW, "layer_types": [_SLIDING, _SLIDING, _SLIDING, _FULL]}

GEMMA4_NAMES = ("gemma4-moe", "gemma4-dense", "gemma4-shared")
OTHER_NAMES = ("gemma3", "llama", "qwen3", "qwen3-sliding", "mistral")


def tiny_model(name: str) -> PreTrainedModel:
    """Random, with weights sharp enough that every row that is seen matters; layer scalars far from 1."""
    torch.manual_seed(3)
    model: Any = _build(name).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" not in parameter_name:
                parameter.mul_(3.0)
        for layer in model.model.layers:
            if hasattr(layer, "layer_scalar"):
                layer.layer_scalar.fill_(0.6)
    model.generation_config.eos_token_id = [1, 5]
    return model


def _build(name: str) -> PreTrainedModel:
    if name == "gemma4-moe":
        return Gemma4ForCausalLM(Gemma4TextConfig(**_GEMMA4, **_MOE))
    if name == "gemma4-dense":
        return Gemma4ForCausalLM(Gemma4TextConfig(**_GEMMA4))
    if name == "gemma4-shared":
        return Gemma4ForCausalLM(Gemma4TextConfig(**_GEMMA4 | _SHARED))
    if name == "gemma3":
        return Gemma3ForCausalLM(Gemma3TextConfig(**_COMMON, **_MIXED))
    if name == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**_COMMON))
    if name == "qwen3-sliding":
        return Qwen3ForCausalLM(Qwen3Config(**_COMMON, **_MIXED, use_sliding_window=True))
    if name == "mistral":
        return MistralForCausalLM(MistralConfig(**_COMMON, sliding_window=WINDOW))
    return LlamaForCausalLM(LlamaConfig(**_COMMON))


def random_ids(rng: np.random.Generator, count: int) -> list[int]:
    """Tokens that end no text."""
    return [int(token) for token in rng.integers(6, VOCABULARY, count)]


def random_tree(rng: np.random.Generator, root: int, nodes: int) -> DraftTree:
    """Every node behind any earlier row, more often behind a late one, so that trees are bushy and deep."""
    tokens, parents, places = [root], [None], set()
    while len(tokens) <= nodes:
        parent = int(max(rng.integers(0, len(tokens), 2)))
        token = random_ids(rng, 1)[0]
        if (parent, token) not in places:
            places.add((parent, token))
            tokens.append(token)
            parents.append(parent)
    return DraftTree(tuple(tokens), tuple(parents), (0.0,) * len(tokens), ("root", *["test"] * nodes))


@torch.no_grad()
def plain_logits(model: Any, ids: list[int]) -> np.ndarray:
    """Logits [rows, vocabulary] of a forward that knows no cache."""
    logits: np.ndarray = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    return logits


@torch.no_grad()
def tree_logits(model: Any, text: list[int], tree: DraftTree) -> np.ndarray:
    """Logits of a tree whose root is the last token of `text`: every path a sequence of its own, with no cache."""
    paths = [tree.path(row) for row in range(tree.rows) if not tree.children(row)]
    sequences = [[*text, *(tree.token_ids[row] for row in path)] for path in paths]
    longest = max(map(len, sequences))
    padded = [
        [*ids, *[0] * (longest - len(ids))] for ids in sequences
    ]  # behind the path, where nothing before it looks
    logits = model(torch.tensor(padded), use_cache=False).logits.numpy()
    rows = np.zeros((tree.rows, VOCABULARY), np.float32)
    for path, ids, scores in zip(paths, sequences, logits, strict=True):
        rows[[0, *path]] = scores[len(text) - 1 : len(ids)]
    return rows


@torch.no_grad()
def plain_cache(model: Any, ids: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and values [kv_heads, rows, head_dim] of every layer that has its own."""
    cache = DynamicCache()  # without a config all layers keep all rows
    model(torch.tensor([ids]), cache=cache, use_cache=True)
    return [(layer.keys[0].numpy(), layer.values[0].numpy()) for layer in cache.layers]
