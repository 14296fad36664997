"""The MTP head's share of a tree: its greedy chain, and the runners-up beside its first tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hyco_npu.decode.drafters.head_window import HeadWindow
from hyco_npu.decode.drafters.phases import FEEDS, STATE, TREE
from hyco_npu.decode.scores import best_candidates
from hyco_npu.decode.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibration.states import HeadState
    from export.mtp.chain import ChainStep, MtpChain
    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.config import MtpSettings
    from hyco_npu.decode.drafters.parts import MtpEngine
    from hyco_npu.decode.protocols import HeadUpdate
    from hyco_npu.decode.scores import Candidate, SourceScore
    from hyco_npu.decode.tree import GrowingTree

SOURCE = "mtp"
SMALLEST_WINDOW = 64
"""Of a head that sees the whole text: its feeds have the next power of two of the text's rows, and at least this."""


@dataclass(frozen=True)
class HeadNodes:
    """Nodes that the head has put into a tree: `chain` from depth 1 down, `siblings` by depth.

    `candidates`: its likeliest tokens at each depth of the chain, best first, those of the nodes among them.
    """

    chain: tuple[int, ...]
    siblings: tuple[int, ...]
    candidates: tuple[list[Candidate], ...]


class MtpCandidates:
    """One text at the head: the verifier's rows, and drafts from behind the last of them."""

    def __init__(self, engine: MtpEngine, settings: MtpSettings, score: SourceScore, clock: Clock) -> None:
        self._engine, self._settings, self._score, self._clock = engine, settings, score, clock
        self.considered = settings.width
        """Candidates a step, for whoever wants more of them than the tree gets."""
        self._window = HeadWindow(engine.window)
        self._length = 0

    def extend(self, token_ids: Sequence[int], update: HeadUpdate | None) -> None:
        """Take tokens behind the text, and the verifier's rows of all that have one: all but the last."""
        with self._clock.phase(STATE):
            self._window.extend(update)
        self._length += len(token_ids)

    def add_to(self, tree: GrowingTree, max_depth: int) -> HeadNodes:
        """Run the chain behind the tree's root, at most `max_depth` steps, and add it with its siblings."""
        steps = min(self._settings.steps, max_depth)
        with self._clock.phase(FEEDS):
            state = self._window.state(tree.token(ROOT), self._length - 1)
            chain = self._chain(state)
            run = list(chain.run(self._engine.graph, state, steps))
        with self._clock.phase(TREE):
            return self._add(tree, run)

    def _add(self, tree: GrowingTree, run: list[ChainStep]) -> HeadNodes:
        chain: list[int] = []
        siblings: list[int] = []
        parent, settings = ROOT, self._settings
        wanted = max(settings.width if settings.sibling_depth else 1, self.considered)
        logits = np.stack([step.logits for step in run])
        of_steps = best_candidates(logits, self._engine.chain.token_ids, wanted, self._score)
        for depth, (step, candidates) in enumerate(zip(run, of_steps, strict=True), start=1):
            count = settings.width if depth <= settings.sibling_depth else 1
            # a temperature can make the two best logits equal: the chain is what the head went on with
            others = [candidate for candidate in candidates[:count] if candidate[0] != step.token_id]
            siblings += tree.add_all(parent, others[: count - 1], SOURCE)
            parent = tree.add(parent, step.token_id, candidates[0][1], SOURCE)
            chain.append(parent)
        return HeadNodes(tuple(chain), tuple(siblings), tuple(of_steps))

    def _chain(self, state: HeadState) -> MtpChain:
        """The chain with feeds that hold the state's rows: as many as its window has, or a growing power of two."""
        chain = self._engine.chain
        if self._engine.window is not None:
            return chain
        rows = max(array.shape[1] for array in state.keys.values())
        window = max(SMALLEST_WINDOW, 1 << (rows - 1).bit_length())
        return replace(chain, feeds=replace(chain.feeds, window=window))
