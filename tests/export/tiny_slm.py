"""Tiny SLMs of E2B's architecture, run by transformers, and a host loop around our static module."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from export.checkpoint.slm import SlmConfig, read_slm_config
from export.graphs.slm import Slm, SlmInputs, cache_shapes, load_slm, per_layer_factor
from export.graphs.tree_feeds import RowTree, TreeFeedBuilder, softcapped
from export.kv_window import KvRows, KvWindow
from quant.table import scale_rows

from .checkpoint.slm_builders import slm_text_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from export.graphs.feeds import Feed

SLIDING_WINDOW = 8
VOCAB_SIZE = 64
SIZES: dict[str, Any] = {"hidden_size": 24, "rms_norm_eps": 1e-3, "vocab_size_per_layer_input": VOCAB_SIZE}
"""A large epsilon, so that one folded wrongly shows."""


@dataclass(frozen=True)
class TinySlm:
    """A model as transformers runs it and as our static module."""

    model: Any
    config: SlmConfig
    slm: Slm

    def reference(self, tokens: Sequence[int], window: int | None = None) -> np.ndarray:
        """transformers' softcapped logits [tokens, vocabulary]; `window`: the masks of a model with a window."""
        masks = None if window is None else reference_masks(len(tokens), window)
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens]), attention_mask=masks, use_cache=False).logits
        return np.asarray(logits[0])


def reference_masks(length: int, window: int) -> dict[str, torch.Tensor]:
    """Brute force: p sees `window` tokens before it and itself, in sliding layers at most 8 with itself."""
    masks = {}
    for kind, reach in (("full_attention", window), ("sliding_attention", min(window, SLIDING_WINDOW - 1))):
        visible = [[0 <= query - key <= reach for key in range(length)] for query in range(length)]
        masks[kind] = torch.where(torch.tensor(visible), 0.0, torch.finfo(torch.float32).min)[None, None]
    return masks


def tiny_slm(folder: Path, seed: int = 0, norms: float | None = None, **changes: Any) -> TinySlm:
    """Norms random in 0.3..0.9 or all `norms`, layer scalars 0.3..0.9, logits of order 1 to 10."""
    text = slm_text_config(**{**SIZES, "sliding_window": SLIDING_WINDOW, **changes})
    (folder / "config.json").write_text(json.dumps(text))
    model = Gemma4ForCausalLM._from_config(Gemma4TextConfig.from_dict(text), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 2:
            tensor.normal_(0.0, 1.5 * tensor.shape[-1] ** -0.5, generator=generator)
        elif "q_norm" in name:
            # Attention scaling is 1.0: the query norm carries 1/sqrt(head_dim), as in trained models.
            tensor.uniform_(0.8, 1.2, generator=generator).mul_(tensor.numel() ** -0.5)
        elif "k_norm" in name:
            tensor.uniform_(1.0, 2.0, generator=generator)
        else:
            tensor.uniform_(0.3, 0.9, generator=generator)
            if norms is not None and "norm" in name:
                tensor.fill_(norms)
    config = read_slm_config(folder)
    return TinySlm(model.eval(), config, load_slm(config, model.state_dict()))


def token_inputs(tiny: TinySlm, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(embedding [n, hidden], per_layer [n, layers * width]) looked up in transformers' own tables."""
    model, ids = tiny.model.model, torch.tensor(list(tokens))
    per_layer = model.embed_tokens_per_layer.weight.detach()[ids] * per_layer_factor(tiny.config)
    return scale_rows(model.embed_tokens.weight.detach()[ids]).numpy(), per_layer.numpy()


def torch_runner(slm: Slm, inputs: SlmInputs) -> Callable[[Feed], Feed]:
    """The static module as a function from feed to result; shapes are checked on both sides."""

    def run(feed: Feed) -> Feed:
        assert {name: array.shape for name, array in feed.items()} == inputs.shapes()
        with torch.no_grad():
            outputs = slm(*(torch.from_numpy(feed[name].copy()) for name in inputs.shapes()))
        result = dict(zip(inputs.output_shapes(), (np.asarray(tensor) for tensor in outputs), strict=True))
        assert {name: array.shape for name, array in result.items()} == inputs.output_shapes()
        return result

    return run


@dataclass
class Session:
    """A text in the making: the graph, its window, and what the host does between passes."""

    tiny: TinySlm
    rows: int
    window: int
    run: Callable[[Feed], Feed] | None = None
    cache: KvWindow = field(init=False)

    def __post_init__(self) -> None:
        self.cache = KvWindow(cache_shapes(self.tiny.config), self.window)
        self.builder = TreeFeedBuilder(self.tiny.config, self.rows, self.window)
        self.run = self.run or torch_runner(self.tiny.slm, SlmInputs(self.tiny.config, self.rows, self.window))

    def draft(self, tree: RowTree, tokens: Sequence[int]) -> np.ndarray:
        """One pass over the tree's new rows: softcapped logits [run, vocabulary]; they are drafted, not accepted."""
        feed = self.builder.feed(tree, *token_inputs(self.tiny, tokens), self.cache.view())
        result = self.run_feed(feed)
        self.cache.append(new_rows(result), tree.positions(self.cache.next_position).tolist())
        return softcapped(result["logits"], self.tiny.config.final_logit_softcapping)[0, 0, : tree.run]

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """The whole text in chunks of `rows`: logits [tokens, vocabulary]."""
        logits = []
        for start in range(0, len(tokens), self.rows):
            chunk = tokens[start : start + self.rows]
            logits.append(self.draft(RowTree.chain(len(chunk)), chunk))
            self.cache.accept(range(len(chunk)))
        return np.concatenate(logits)

    def run_feed(self, feed: Feed) -> Feed:
        assert self.run is not None
        return self.run(feed)


def new_rows(result: Mapping[str, np.ndarray]) -> dict[int, KvRows]:
    """The graph's keys and values by owner."""
    owners = [int(name.rsplit("_", 1)[1]) for name in result if name.startswith("new_keys_")]
    return {owner: KvRows(result[f"new_keys_{owner}"], result[f"new_values_{owner}"]) for owner in owners}
