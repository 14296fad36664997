"""The server's side of a round: verify, accept, commit.

A tree is verified in one pass, the rule chooses a path and the token behind it, and what is kept ends at a stop token
or at the limit: nothing behind it is emitted, counted or stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hyco_npu.decode.clock import Clock
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.protocols import Reply
from hyco_npu.decode.tree import DraftTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.acceptance import AcceptanceRule
    from hyco_npu.decode.protocols import Verifier

SERVER_FORWARD, SERVER_ACCEPT, SERVER_STATE = "server.forward", "server.accept", "server.state"


@dataclass
class Target:
    """One text at the server. `remaining` tokens may still be emitted; `seed` makes sampling repeatable."""

    verifier: Verifier
    rule: AcceptanceRule
    seed: int = 0
    clock: Clock = field(default_factory=Clock)
    remaining: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def prefill(self, token_ids: Sequence[int], max_new_tokens: int) -> Reply:
        """Take in a prompt (or what follows the text so far) and emit the first token.

        Raises DecodeError where nothing was given, nothing may be emitted, or the text would outgrow the verifier.
        """
        if not token_ids or max_new_tokens < 1:
            raise DecodeError(f"{len(token_ids)} prompt tokens and {max_new_tokens} new ones: both must be 1 or more")
        limit, whole = self.verifier.max_positions, self.verifier.length + len(token_ids) + max_new_tokens
        if limit is not None and whole > limit:
            raise DecodeError(
                f"{whole - max_new_tokens} tokens of text and {max_new_tokens} new ones are {whole}, the verifier "
                f"holds {limit}; shorten the prompt or ask for fewer"
            )
        self.remaining = max_new_tokens
        with self.clock.phase(SERVER_FORWARD):
            logits = self.verifier.prefill(token_ids)
        return self._reply(DraftTree.root_only(int(token_ids[-1])), logits)

    def answer(self, tree: DraftTree) -> Reply:
        """Verify a tree whose root is the last emitted token. Raises DecodeError for a text that is finished."""
        if self.remaining < 1:
            raise DecodeError("the text is finished: a tree came with nothing left to emit; begin with a prompt")
        with self.clock.phase(SERVER_FORWARD):
            logits = self.verifier.verify(tree)
        return self._reply(tree, logits)

    def _reply(self, tree: DraftTree, logits: np.ndarray) -> Reply:
        with self.clock.phase(SERVER_ACCEPT):
            chosen = self.rule.accept(tree, logits, self._rng)
            tokens = (*(tree.token_ids[row] for row in chosen.rows), chosen.bonus)
            emitted = cut(tokens, self.remaining, self.verifier.stop_ids)
        finished = len(emitted) == self.remaining or emitted[-1] in self.verifier.stop_ids
        self.remaining = 0 if finished else self.remaining - len(emitted)
        with self.clock.phase(SERVER_STATE):
            update = self.verifier.commit(chosen.rows[: len(emitted) - 1], emitted[-1])
        return Reply(chosen.rows[: len(emitted)], emitted, finished, update)


def cut(tokens: tuple[int, ...], limit: int, stop_ids: frozenset[int]) -> tuple[int, ...]:
    """The first `limit` tokens, up to and including a stop token."""
    stop = next((place for place, token in enumerate(tokens) if token in stop_ids), len(tokens))
    return tokens[: min(limit, stop + 1)]
