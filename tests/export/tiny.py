"""Tiny MTP heads of true architecture, run by transformers, with telling weights and random verifier states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibration.states import HeadState
from export.checkpoint.mtp import MtpConfig, read_mtp_checkpoint
from export.graphs.mtp import KINDS, MtpHead, layer_of_kind, load_mtp_head

from .checkpoint.builders import assistant_config, write_assistant

if TYPE_CHECKING:
    from pathlib import Path

    from export.graphs.feeds import Feed

VOCAB_SIZE = 300
BACKBONE = 48
SLIDING_WINDOW = 8
WINDOW = 8
KEEP = np.arange(0, VOCAB_SIZE, 3)
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": SLIDING_WINDOW,
    "final_logit_softcapping": 0.5,
}


@dataclass(frozen=True)
class TinyHead:
    """A head on disk, as transformers runs it and as our static module."""

    folder: Path
    model: Any
    config: MtpConfig
    head: MtpHead


def tiny_head(folder: Path, seed: int = 0, **text_changes: Any) -> TinyHead:
    """Write a head to `folder`: norms and layer scalars 0.3..0.9, logits of order 1, a softcap far below them."""
    config = assistant_config({**SIZES, **text_changes}, backbone_hidden_size=BACKBONE)
    model = write_assistant(folder, config, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 2:
            tensor.normal_(0.0, 1.5 * tensor.shape[-1] ** -0.5, generator=generator)
        elif "q_norm" in name:
            # Attention scaling is 1.0: the query norm carries 1/sqrt(head_dim), as in trained heads.
            tensor.uniform_(0.8, 1.2, generator=generator).mul_(tensor.numel() ** -0.5)
    model.save_pretrained(folder)
    checkpoint = read_mtp_checkpoint(folder)
    return TinyHead(folder, model, checkpoint.config, load_mtp_head(checkpoint.config, checkpoint.state_dict()))


def random_state(config: MtpConfig, position: int, seed: int = 0, rows: int | None = None) -> HeadState:
    """A verifier state of `position` rows (or fewer kept `rows`), numbers of order 1."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    keys, values = {}, {}
    for kind in KINDS:
        layer = layer_of_kind(config, kind)
        shape = (layer.num_key_value_heads, position if rows is None else rows, layer.head_dim)
        keys[kind], values[kind] = normal(*shape), normal(*shape)
    width = config.backbone_hidden_size
    return HeadState(int(rng.integers(config.vocab_size)), position, normal(width), normal(width), keys, values)


def run_torch(head: MtpHead, feed: Feed) -> tuple[np.ndarray, np.ndarray]:
    """(next hidden [backbone], logits [vocabulary]) of the static module."""
    with torch.no_grad():
        hidden, logits = head(**{name: torch.from_numpy(array) for name, array in feed.items()})
    return hidden.numpy().reshape(-1), logits.numpy().reshape(-1)


def run_transformers(model: Any, state: HeadState, position: int) -> tuple[np.ndarray, np.ndarray]:
    """The same from transformers' own head, with exactly the rows of `state` and the query at `position`."""
    shared = {
        f"{kind}_attention": (torch.from_numpy(state.keys[kind])[None], torch.from_numpy(state.values[kind])[None])
        for kind in KINDS
    }
    embeds = torch.from_numpy(np.concatenate([state.embedding, state.hidden]))[None, None]
    with torch.no_grad():
        out = model(inputs_embeds=embeds, position_ids=torch.tensor([[position]]), shared_kv_states=shared)
    return out.last_hidden_state.numpy().reshape(-1), out.logits.numpy().reshape(-1)


def last_rows(state: HeadState, kinds: dict[str, int]) -> HeadState:
    """The state with the named kinds cut to their last rows."""
    keys = {kind: array[:, -kinds.get(kind, array.shape[1]) :] for kind, array in state.keys.items()}
    values = {kind: array[:, -kinds.get(kind, array.shape[1]) :] for kind, array in state.values.items()}
    return HeadState(state.token_id, state.position, state.embedding, state.hidden, keys, values)
