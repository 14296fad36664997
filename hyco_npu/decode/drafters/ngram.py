"""Lookup in the text itself: what followed the last few tokens where they occurred before.

The longest suffix that occurred counts. Its most recent occurrence is drafted first; where that is too close to the
end of the text to give all tokens, or the tree has room for more, earlier ones follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyco_npu.decode.drafters.ngram_index import NgramIndex
from hyco_npu.decode.drafters.phases import TREE
from hyco_npu.decode.tree import ROOT, DraftTree, GrowingTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.config import NgramSettings
    from hyco_npu.decode.protocols import Reply

SOURCE = "ngram"


class NgramDrafter:
    """Drafts at most `nodes` tokens, `settings.tokens` of them on a path; every edge scores `log_probability`."""

    def __init__(self, settings: NgramSettings, nodes: int, log_probability: float, clock: Clock) -> None:
        self._settings, self._nodes, self._log_probability = settings, nodes, min(0.0, log_probability)
        self._clock = clock
        self._index = NgramIndex(settings.longest, settings.shortest)

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """Read prompt and first token."""
        self._extend([*token_ids, *reply.emitted])

    def draft(self, max_depth: int) -> DraftTree:
        """What followed the longest suffix that occurred; the root alone where none did."""
        with self._clock.phase(TREE):
            tree = GrowingTree(self._index.text[-1])
            for place in reversed(self._index.places()):
                node = ROOT
                for token in self._index.text[place : place + min(self._settings.tokens, max_depth)]:
                    if len(tree) > self._nodes and tree.find(node, token) is None:
                        break
                    node = tree.add(node, token, self._log_probability, SOURCE)
                if len(tree) > self._nodes:
                    break
            return tree.trim(self._nodes, max_depth).tree

    def while_waiting(self) -> None:
        """Nothing to do: a lookup costs nothing."""

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """Read what was emitted."""
        self._extend(reply.emitted)

    def _extend(self, token_ids: Sequence[int]) -> None:
        with self._clock.phase(TREE):
            self._index.extend(token_ids)
