"""The decoding loop, on the device: draft, have it verified and accepted, commit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.tree import DraftTree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hyco_npu.decode.protocols import Drafter, Reply
    from hyco_npu.decode.target import Target


@dataclass(frozen=True)
class Round:
    """One round: what was drafted, what came of it, and where its time went.

    The first round of a text is the prefill: its tree is the prompt's last token alone. `phases` are seconds by
    "side.part"; `seconds` is the round's wall time, so their difference is what no phase accounts for.
    """

    tree: DraftTree
    reply: Reply
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens that the round added to the text."""
        return self.reply.emitted


def decode(target: Target, drafter: Drafter, token_ids: Sequence[int], max_new_tokens: int) -> Iterator[Round]:
    """Yield rounds until a stop token or `max_new_tokens` tokens, exactly; the stop token is emitted.

    `token_ids` follow the text that both sides hold: a prompt at first, a further turn later.
    """
    started = time.perf_counter()
    target.clock.take()
    reply = target.prefill(token_ids, max_new_tokens)
    drafter.begin(token_ids, reply)
    tree = DraftTree.root_only(int(token_ids[-1]))
    while True:
        yield Round(tree, reply, time.perf_counter() - started, target.clock.take())
        if reply.finished:
            return
        started = time.perf_counter()
        tree = _draft(drafter, reply.emitted[-1], target.remaining)
        if target.remaining > 1:
            drafter.while_waiting()
        reply = target.answer(tree)
        drafter.commit(tree, reply)


def _draft(drafter: Drafter, root: int, remaining: int) -> DraftTree:
    """A round emits one token more than its deepest path has: a draft never reaches beyond the limit."""
    if remaining == 1:
        return DraftTree.root_only(root)
    tree = drafter.draft(remaining - 1)
    if tree.token_ids[0] != root or max(tree.depths) >= remaining:
        raise DecodeError(
            f"the drafter's tree begins with token {tree.token_ids[0]} and is {max(tree.depths)} deep; it must begin "
            f"with {root} and be at most {remaining - 1} deep"
        )
    return tree
