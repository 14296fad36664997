"""What the verifier hands to its MTP head: the state at one position, recorded from transformers' own forward.

This module does not know the head. It runs the verifier greedily on prompts and cuts out, at chosen positions, what a
server would send to the phone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from transformers import Gemma4ForCausalLM

_KIND = {"sliding_attention": "sliding", "full_attention": "full"}


def kind_of_layer_type(layer_type: str) -> str:
    """transformers' layer type ("sliding_attention", "full_attention") -> "sliding" or "full"."""
    return _KIND[layer_type]


@dataclass(frozen=True)
class HeadState:
    """The verifier's state after `position` committed rows, when token `token_id` is next to be fed.

    embedding [backbone]: scaled input embedding of token x_t (t = position, the bonus token). hidden [backbone]: the
    verifier's hidden state of row t-1, after its final norm. keys and values per kind ("sliding", "full")
    [kv_heads, rows, head_dim], the rows t-n..t-1 in order, keys rotated; a kind may hold fewer rows than `position`
    when older ones are outside every window.
    """

    token_id: int
    position: int
    embedding: np.ndarray
    hidden: np.ndarray
    keys: dict[str, np.ndarray]
    values: dict[str, np.ndarray]


def record_states(
    verifier: Gemma4ForCausalLM, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], window: int
) -> Iterator[HeadState]:
    """States of `sequences` (prompt and answer) at the given `positions` of each, rows cut to the last `window`.

    A state at position t holds token x_t and the rows 0..t-1; t must lie in 1..len-1.
    """
    for ids, wanted in zip(sequences, positions, strict=True):
        outside = [t for t in wanted if not 0 < t < len(ids)]
        if outside:
            raise ValueError(f"positions {outside} outside 1..{len(ids) - 1}")
        tokens = torch.tensor([list(ids)])
        with torch.no_grad():
            out = verifier(tokens, use_cache=False, output_hidden_states=True, return_shared_kv_states=True)
            embeddings = verifier.get_input_embeddings()(tokens)[0].numpy()
        hidden = out.hidden_states[-1][0].numpy()
        shared = {
            kind_of_layer_type(kind): (k[0].numpy(), v[0].numpy()) for kind, (k, v) in out.shared_kv_states.items()
        }
        for t in wanted:
            rows = slice(max(0, t - window), t)
            yield HeadState(
                token_id=int(ids[t]),
                position=t,
                embedding=embeddings[t],
                hidden=hidden[t - 1],
                keys={kind: k[:, rows] for kind, (k, _) in shared.items()},
                values={kind: v[:, rows] for kind, (_, v) in shared.items()},
            )


def greedy_sequence(verifier: Gemma4ForCausalLM, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Prompt and up to `new_tokens` greedy tokens, ending at a stop token (the verifier's generation config)."""
    stop = verifier.generation_config.eos_token_id
    stops = set(stop) if isinstance(stop, list) else {stop}
    ids = list(prompt)
    with torch.no_grad():
        out = verifier(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        for _ in range(new_tokens):
            token = int(out.logits[0, -1].argmax())
            ids.append(token)
            if token in stops:
                break
            out = verifier(torch.tensor([[token]]), cache=out.cache, use_cache=True, logits_to_keep=1)
    return ids
