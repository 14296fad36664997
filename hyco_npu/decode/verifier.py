"""The server's side of a round: transformers' Gemma 4 verifies a chain in one forward pass and returns the state.

Greedy and exact: a draft token is accepted if it is the verifier's own choice. This module knows nothing of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from calibration.states import HeadState, kind_of_layer_type
from calibration.verifier import load_verifier

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import Gemma4ForCausalLM


@dataclass(frozen=True)
class Verdict:
    """What the verifier says of a draft: the accepted prefix, its own next token, and the state behind that."""

    accepted: tuple[int, ...]
    bonus: int
    state: HeadState


class GreedyVerifier:
    """One session over one prompt. Call `prefill` once, then `verify` for every draft.

    The cache holds a row for every committed token but the last one (the bonus), whose row comes with the next pass.
    """

    def __init__(self, model: Gemma4ForCausalLM, window: int) -> None:
        self._model, self._window = model, window
        # Full-length layers for every kind: a sliding cache cannot take back rows that were rejected.
        self._cache = DynamicCache()
        self._committed = 0
        self._bonus: int | None = None
        self.forward_passes = 0

    @classmethod
    def load(cls, folder: Path, window: int) -> GreedyVerifier:
        """A session on the checkpoint at `folder`."""
        return cls(load_verifier(folder), window)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text: all that the generation config names."""
        stop = self._model.generation_config.eos_token_id
        return frozenset(stop if isinstance(stop, list) else [stop])

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        """Take in the prompt; nothing is accepted, the bonus is the first new token."""
        return self._pass(list(prompt), draft=())

    def verify(self, draft: Sequence[int]) -> Verdict:
        """One forward pass over the bonus of the last verdict and `draft`; rejected rows leave the cache.

        Raises ValueError before `prefill`: there is nothing to continue.
        """
        if self._bonus is None:
            raise ValueError("verify was called before prefill; take in the prompt first")
        return self._pass([self._bonus, *draft], draft=tuple(draft))

    def _pass(self, rows: list[int], draft: tuple[int, ...]) -> Verdict:
        with torch.no_grad():
            out = self._model(
                torch.tensor([rows]),
                cache=self._cache,
                use_cache=True,
                output_hidden_states=True,
                return_shared_kv_states=True,
            )
        self.forward_passes += 1
        choices = out.logits[0, len(rows) - len(draft) - 1 :].argmax(-1).tolist()
        accepted = _matching_prefix(draft, choices)
        last = len(rows) - len(draft) - 1 + len(accepted)
        self._committed += last + 1
        rejected = len(rows) - 1 - last
        if rejected:
            self._cache.crop(-rejected)
        self._bonus = bonus = choices[len(accepted)]
        return Verdict(accepted, bonus, self._state(out, last, bonus))

    def _state(self, out: Any, last: int, bonus: int) -> HeadState:
        """The state at the last verified row: only committed rows are handed out, never rejected ones."""
        t = self._committed
        rows = slice(max(0, t - self._window), t)
        shared = {kind_of_layer_type(kind): pair for kind, pair in out.shared_kv_states.items()}
        with torch.no_grad():
            embedding = self._model.get_input_embeddings()(torch.tensor([bonus]))[0]
        return HeadState(
            token_id=bonus,
            position=t,
            embedding=embedding.numpy(),
            hidden=out.hidden_states[-1][0, last].numpy(),
            keys={kind: k[0, :, rows].numpy() for kind, (k, _) in shared.items()},
            values={kind: v[0, :, rows].numpy() for kind, (_, v) in shared.items()},
        )


def _matching_prefix(draft: Sequence[int], choices: Sequence[int]) -> tuple[int, ...]:
    accepted: list[int] = []
    for token, choice in zip(draft, choices, strict=False):
        if token != choice:
            break
        accepted.append(token)
    return tuple(accepted)
