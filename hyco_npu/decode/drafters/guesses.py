"""Guess rows: tokens that the SLM's pass runs beside what the head drafted, because its rows would otherwise be empty.

The NPU's graph has a fixed number of rows, and a pass costs the same however many are used. A guess is a token that
may well stand where it is put, from what costs nothing: the head's further candidates, the chain's later tokens behind
another first token, and what followed the same tokens earlier in the text. It has no score of its own. It stays in the
tree where the SLM, in that same pass, puts it behind its parent; then the SLM's children of it are there too, one level
deeper than the pass would reach. This is ours, not the paper's; without the section [guesses] there are none.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from hyco_npu.decode.drafters.ngram_index import NgramIndex
from hyco_npu.decode.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hyco_npu.decode.config import GuessSettings
    from hyco_npu.decode.drafters.mtp import HeadNodes
    from hyco_npu.decode.tree import GrowingTree

SOURCE = "guess"
UNSCORED = -100.0
"""Log-probability of a guess that the SLM does not confirm: below any that a drafter gives."""
_MOVED, _FOLLOWED = 0.5, 0.7
"""What a guess loses, in nats, where the chain's token is moved behind another, and where a text is taken to repeat."""


_Guess = tuple[float, int, int, int]
"""Cost (minus a guess at the path's log-probability), parent, token, and the place in the chain that it stands for."""


class Guesses:
    """One text's guesses, best first."""

    def __init__(self, settings: GuessSettings) -> None:
        self._runners_up = settings.runners_up
        self._index = NgramIndex(settings.longest, settings.shortest)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take tokens behind the text."""
        self._index.extend(token_ids)

    def add_to(self, tree: GrowingTree, head: HeadNodes, room: int, max_depth: int) -> list[int]:
        """Put at most `room` new nodes into the tree, parents first, none as deep as `max_depth`: they get children.

        The tree holds what the head drafted; its root is the text's last token.
        """
        scores = tree.scores()
        heap: list[_Guess] = []
        for step, (parent, candidates) in enumerate(zip((ROOT, *head.chain), head.candidates, strict=False)):
            heap += [(-scores[parent] - score, parent, token, step) for token, score in candidates[: self._runners_up]]
        for node in (ROOT, *head.chain, *head.siblings):
            heap += self._behind(tree, head, node, tree.depth(node) - 1, -scores[node])
        heapq.heapify(heap)
        added: list[int] = []
        while heap and len(added) < room:
            cost, parent, token, step = heapq.heappop(heap)
            if tree.find(parent, token) is None and tree.depth(parent) + 1 < max_depth:
                node = tree.add(parent, token, UNSCORED, SOURCE)
                added.append(node)
                for guess in self._behind(tree, head, node, step, cost):
                    heapq.heappush(heap, guess)
        return added

    def _behind(self, tree: GrowingTree, head: HeadNodes, node: int, step: int, cost: float) -> Iterator[_Guess]:
        """Guesses at the token behind `node`, which stands for the chain's token number `step` (-1: the root)."""
        if step + 1 < len(head.chain):
            token = tree.token(head.chain[step + 1])
            moved = cost - head.candidates[step + 1][0][1] + _MOVED
            yield moved, node, token, step + 1
        places = self._index.places([tree.token(at) for at in _path(tree, node)])
        if places:
            yield cost + _FOLLOWED, node, self._index.text[places[-1]], step + 1


def _path(tree: GrowingTree, node: int) -> list[int]:
    """Nodes from the root (left out: it is the text's last token) to `node`."""
    nodes: list[int] = []
    at: int | None = node
    while at:
        nodes.append(at)
        at = tree.parent(at)
    return nodes[::-1]
