"""The MTP head alone: its chain, with siblings where the configuration names some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyco_npu.decode.drafters.phases import TREE
from hyco_npu.decode.tree import DraftTree, GrowingTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.config import TreeSettings
    from hyco_npu.decode.drafters.mtp import MtpCandidates
    from hyco_npu.decode.protocols import Reply


class ChainDrafter:
    """Every draft is what the head makes of the last reply."""

    def __init__(self, head: MtpCandidates, settings: TreeSettings, clock: Clock) -> None:
        self._head, self._settings, self._clock = head, settings, clock
        self._root = 0

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """Take the verifier's rows of the prompt."""
        self._head.extend([*token_ids, *reply.emitted], reply.update)
        self._root = reply.emitted[-1]

    def draft(self, max_depth: int) -> DraftTree:
        """The chain behind the last emitted token."""
        tree = GrowingTree(self._root)
        nodes = self._head.add_to(tree, max_depth)
        with self._clock.phase(TREE):
            always = nodes.chain if self._settings.keep_chain else ()
            return tree.trim(self._settings.nodes, max_depth, always).tree

    def while_waiting(self) -> None:
        """Nothing to do: the head's next step needs the reply."""

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """Take the verifier's rows of what was accepted."""
        self._head.extend(reply.emitted, reply.update)
        self._root = reply.emitted[-1]
