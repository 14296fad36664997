"""SpecEdge's draft: the SLM alone grows a tree pass by pass, and may go on under its best guess while the reply is due.

Children score their parent's score + ln 0.9 + log p, as in SpecEdge. The guess is the likeliest leaf of the tree that
was sent and the SLM's first choice behind it; it is right only if the reply ends with both, and the next draft then
starts from the tree under it. That this draft still has all its passes is our inference: the paper is not public here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyco_npu.decode.drafters.phases import TREE
from hyco_npu.decode.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.config import SlmSettings
    from hyco_npu.decode.drafters.passes import TreePasses
    from hyco_npu.decode.drafters.slm import SlmTree
    from hyco_npu.decode.protocols import Reply
    from hyco_npu.decode.tree import Trimmed

EDGE_SCORE = math.log(0.9)


@dataclass(frozen=True, eq=False)
class _Guess:
    """How the reply may end: with this node of the tree and, behind it, the root of `grown`."""

    leaf: int
    grown: SlmTree


class BeamDrafter:
    """The SLM over one text. `hits` and `guesses` count what drafting ahead came to."""

    def __init__(self, slm: TreePasses, settings: SlmSettings) -> None:
        self._slm, self._settings = slm, settings
        self._sent: tuple[SlmTree, Trimmed] | None = None
        self._guess: _Guess | None = None
        self._ahead: SlmTree | None = None
        self.hits = self.guesses = 0

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """Take prompt and first token."""
        self._ahead = None
        self._slm.rows.extend([*token_ids, *reply.emitted])

    def draft(self, max_depth: int) -> DraftTree:
        """The root's children, then those of the best new nodes; from the tree drafted ahead where there is one."""
        grown, passes = self._ahead, self._settings.passes
        if grown is None:
            grown, passes = self._slm.rows.plant(), passes - 1
            self._slm.grow(grown, [ROOT], max_depth)
        self._slm.further(grown, passes, max_depth)
        with self._slm.clock.phase(TREE):
            trimmed = grown.tree.trim(self._slm.nodes, max_depth)
        self._sent = grown, trimmed
        return trimmed.tree

    def while_waiting(self) -> None:
        """Draft ahead: at most `proactive_passes` passes, the one that may be needed for the guess included."""
        passes = self._settings.proactive_passes
        if self._sent is None or not passes:
            return
        sent, trimmed = self._sent
        path = [trimmed.nodes[row] for row in _path_to_best_leaf(trimmed.tree)]
        if path[-1] not in sent.likeliest:
            if any(node not in sent.rows for node in path[:-1]):
                return
            self._slm.rows.keep((sent, [*path, *trimmed.nodes]))
            self._slm.rows.expand(sent, path[-1:])
            passes -= 1
        if passes and path[-1] in sent.rows:
            self._grow_ahead(sent, trimmed, path[-1], passes)

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """Take the reply; a right guess leaves the next draft its beginning."""
        rows, guess = self._slm.rows, self._guess
        sent, self._sent, self._guess, self._ahead = self._sent, None, None, None
        if sent is None:
            rows.commit(reply.emitted, None, ())
            return
        grown, trimmed = sent
        path = [trimmed.nodes[row] for row in reply.committed]
        if guess is not None and reply.bonus == guess.grown.tree.token(ROOT) and guess.leaf == (path or [ROOT])[-1]:
            self._ahead = guess.grown
            self.hits += 1
        rows.commit(reply.emitted, grown, path, self._ahead)

    def _grow_ahead(self, sent: SlmTree, trimmed: Trimmed, leaf: int, passes: int) -> None:
        """A tree behind the leaf's likeliest token; rows of the tree that was sent give way to its own."""
        grown = self._slm.rows.plant_behind(sent, leaf, sent.likeliest[leaf])
        self._slm.rows.keep((grown, ()), (sent, trimmed.nodes))
        self._slm.grow(grown, [ROOT])
        self._slm.further(grown, passes - 1, beside=[(sent, trimmed.nodes)])
        self._guess = _Guess(leaf, grown)
        self.guesses += 1


def _path_to_best_leaf(tree: DraftTree) -> tuple[int, ...]:
    """Rows from the root to the row without children that scores highest; the first of equal ones."""
    inner = {parent for parent in tree.parents if parent is not None}
    leaf = max((row for row in range(tree.rows) if row not in inner), key=lambda row: tree.scores[row])
    return (ROOT, *tree.path(leaf))
