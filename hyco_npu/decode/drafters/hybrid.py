"""HyCo's round: the head's chain with siblings, branched at every node by one pass of the SLM.

The SLM runs root, chain and siblings, with the accepted tokens that it lacks in front; equal (parent, token) pairs are
merged, and the tree is cut by score. This order is our inference: the paper's own is not public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyco_npu.decode.drafters.phases import TREE
from hyco_npu.decode.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.config import TreeSettings
    from hyco_npu.decode.drafters.guesses import Guesses
    from hyco_npu.decode.drafters.mtp import MtpCandidates
    from hyco_npu.decode.drafters.passes import TreePasses
    from hyco_npu.decode.drafters.slm import SlmTree
    from hyco_npu.decode.protocols import Reply
    from hyco_npu.decode.tree import Trimmed


class HybridDrafter:
    """Head and SLM over one text. `passes`: passes of the SLM, the first over what the head drafted."""

    def __init__(
        self, head: MtpCandidates, slm: TreePasses, passes: int, settings: TreeSettings, guesses: Guesses | None = None
    ) -> None:
        self._head, self._slm, self._passes, self._settings, self._guesses = head, slm, passes, settings, guesses
        self._sent: tuple[SlmTree, Trimmed] | None = None

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """Take prompt and first token to both drafters."""
        self._head.extend([*token_ids, *reply.emitted], reply.update)
        self._slm.rows.extend([*token_ids, *reply.emitted])
        if self._guesses is not None:
            self._guesses.extend([*token_ids, *reply.emitted])

    def draft(self, max_depth: int) -> DraftTree:
        """Chain and siblings, one pass over all of them, further ones over the best new nodes; then the cut."""
        grown = self._slm.rows.plant()
        drafted = self._head.add_to(grown.tree, max_depth)
        always = drafted.chain if self._settings.keep_chain else ()
        # nodes are added parents first, and so are run in their order
        nodes = [ROOT, *sorted(drafted.chain + drafted.siblings)]
        if self._guesses is not None:
            with self._slm.clock.phase(TREE):
                room = self._slm.rows.room(len(nodes))
                nodes += self._guesses.add_to(grown.tree, drafted, room, max_depth)
        self._slm.grow(grown, nodes, max_depth)
        self._slm.further(grown, self._passes - 1, max_depth, always)
        with self._slm.clock.phase(TREE):
            trimmed = grown.tree.trim(self._settings.nodes, max_depth, always)
        self._sent = grown, trimmed
        return trimmed.tree

    def while_waiting(self) -> None:
        """Nothing to do: the head's next step needs the reply."""

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """Take the reply to both drafters."""
        self._head.extend(reply.emitted, reply.update)
        if self._guesses is not None:
            self._guesses.extend(reply.emitted)
        if self._sent is None:
            self._slm.rows.commit(reply.emitted, None, ())
            return
        grown, trimmed = self._sent
        self._sent = None
        self._slm.rows.commit(reply.emitted, grown, [trimmed.nodes[row] for row in reply.committed])
