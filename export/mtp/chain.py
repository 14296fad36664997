"""One drafting round on any engine: K steps, each fed with the token and the hidden state of the step before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.engines.graph_io import Feed, StepGraph, joined_logits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from calibration.states import HeadState
    from export.graphs.feeds import FeedBuilder

CHAIN_LENGTH = 4
"""K of the paper."""


@dataclass(frozen=True)
class ChainStep:
    """One step: what went in, what came out, and the greedy draft token."""

    feed: Feed
    result: Feed
    logits: np.ndarray
    """Raw logits over the keep set [columns], float32."""
    token_id: int


@dataclass(frozen=True)
class MtpChain:
    """Drafts greedily with a step graph; the first embedding comes from the server, later ones from the table.

    `token_ids` [columns] maps a logit's column to the verifier's vocabulary; `embed` gives a token's scaled embedding
    [backbone].
    """

    feeds: FeedBuilder
    token_ids: np.ndarray
    embed: Callable[[int], np.ndarray]

    def run(self, graph: StepGraph, state: HeadState, steps: int = CHAIN_LENGTH) -> Iterator[ChainStep]:
        """Yield `steps` chain steps from `state`; ties go to the lowest token id."""
        context = self.feeds.context(state)
        embedding, hidden = state.embedding, state.hidden
        for step in range(steps):
            feed = self.feeds.step(context, embedding, hidden)
            result = graph.run(feed)
            logits = joined_logits(result).reshape(-1)
            token_id = int(self.token_ids[int(logits.argmax())])
            yield ChainStep(feed, result, logits, token_id)
            if step + 1 < steps:
                embedding, hidden = self.embed(token_id), result["next_hidden"].reshape(-1)
