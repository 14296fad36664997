"""Both sides of a round without models: the verifier is a function of the text, the drafter any plan for a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hyco_npu.decode.protocols import HeadUpdate
from hyco_npu.decode.tree import DraftTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hyco_npu.decode.protocols import Reply

    Text = tuple[int, ...]


class ScriptedVerifier:
    """`protocols.Verifier` over a function of the text. `cache` are the tokens that would have keys and values."""

    def __init__(
        self,
        logits_of: Callable[[Text], np.ndarray],
        stop_ids: Sequence[int] = (),
        max_positions: int | None = None,
    ) -> None:
        self.logits_of, self.stop_ids, self.max_positions = logits_of, frozenset(stop_ids), max_positions
        self.cache: list[int] = []
        self.pending: int | None = None
        self.commits: list[tuple[tuple[int, ...], int]] = []
        self.deepest = 0
        self._tree: DraftTree | None = None

    @property
    def length(self) -> int:
        return len(self.cache) + (self.pending is not None)

    def prefill(self, token_ids: Sequence[int]) -> np.ndarray:
        assert self._tree is None, "the last pass was not committed"
        self.cache += [*([] if self.pending is None else [self.pending]), *token_ids]
        self.pending, self._tree = None, DraftTree.root_only(self.cache[-1])
        self.deepest = max(self.deepest, len(self.cache))
        return self.logits_of(tuple(self.cache))[None]

    def verify(self, tree: DraftTree) -> np.ndarray:
        assert self._tree is None, "the last pass was not committed"
        assert tree.token_ids[0] == self.pending, "the tree does not begin with the last emitted token"
        self._tree = tree
        self.deepest = max(self.deepest, len(self.cache) + 1 + max(tree.depths))
        return rows_of(tree, (*self.cache, self.pending), self.logits_of)

    def commit(self, rows: Sequence[int], next_token: int) -> HeadUpdate | None:
        tree, self._tree = self._tree, None
        assert tree is not None, "commit without a pass"
        assert [tree.parents[row] for row in rows] == [0, *rows][: len(rows)], "these rows are no path"
        if self.pending is not None:
            self.cache.append(self.pending)
        self.cache += [tree.token_ids[row] for row in rows]
        self.pending = next_token
        self.commits.append((tuple(rows), next_token))
        return HeadUpdate(np.full(3, next_token), np.zeros(3), {}, {})


def rows_of(tree: DraftTree, text: Text, logits_of: Callable[[Text], np.ndarray]) -> np.ndarray:
    """Logits [rows, vocabulary] of a tree behind `text`, whose last token is the root."""
    paths = [tuple(tree.token_ids[node] for node in tree.path(row)) for row in range(tree.rows)]
    return np.stack([logits_of((*text, *path)) for path in paths])


class ScriptedDrafter:
    """`protocols.Drafter` that plans from the text; `calls` names what it was asked, in order."""

    def __init__(self, plan: Callable[[Text, int], DraftTree]) -> None:
        self.plan = plan
        self.text: Text = ()
        self.calls: list[str] = []
        self._drafted: DraftTree | None = None

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        self.calls.append("begin")
        assert reply.accepted == ()
        self.text = (*self.text, *token_ids, *reply.emitted)

    def draft(self, max_depth: int) -> DraftTree:
        self.calls.append("draft")
        assert max_depth >= 1
        self._drafted = self.plan(self.text, max_depth)
        return self._drafted

    def while_waiting(self) -> None:
        self.calls.append("while_waiting")
        assert self._drafted is not None, "no tree is under way"

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        self.calls.append("commit")
        assert tree is self._drafted or (self._drafted is None and tree.nodes == 0)
        self._drafted = None
        self.text = (*self.text, *reply.emitted)


def chain_plan(next_of: Callable[[Text], int], length: int) -> Callable[[Text, int], DraftTree]:
    """Plan of a chain of at most `length` tokens, each `next_of` the text before it."""

    def plan(text: Text, max_depth: int) -> DraftTree:
        tokens = list(text)
        for _ in range(min(length, max_depth)):
            tokens.append(next_of(tuple(tokens)))
        return DraftTree.chain(tokens[len(text) - 1 :], "mtp")

    return plan


def fixed_text(text: Sequence[int], vocabulary: int = 256) -> Callable[[Text], np.ndarray]:
    """Logits that write `text` behind a prompt of one token, then token 0 for ever."""

    def logits_of(so_far: Text) -> np.ndarray:
        place = len(so_far) - 1
        logits = np.zeros(vocabulary, np.float32)
        logits[text[place] if place < len(text) else 0] = 5.0
        return logits

    return logits_of
