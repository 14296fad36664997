"""No drafting: the verifier alone, a token a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyco_npu.decode.tree import DraftTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.protocols import Reply


class NoDrafter:
    """Drafts nothing: every tree is its root."""

    def __init__(self) -> None:
        self._root = 0

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """Only the last emitted token matters."""
        self._root = reply.emitted[-1]

    def draft(self, max_depth: int) -> DraftTree:
        """The root."""
        return DraftTree.root_only(self._root)

    def while_waiting(self) -> None:
        """Nothing to do."""

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """Only the last emitted token matters."""
        self._root = reply.emitted[-1]
