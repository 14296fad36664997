"""The decoding loop: draft, verify, accept, commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from calibration.states import HeadState
    from export.engines.graph_io import StepGraph
    from export.mtp.chain import MtpChain
    from hyco_npu.decode.verifier import Verdict


class Drafter(Protocol):
    """The device's side of a round."""

    def draft(self, state: HeadState) -> list[int]:
        """Token ids that may follow the state's token, as a chain."""
        ...


class Verifier(Protocol):
    """The server's side of a round."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        ...

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        """Take in the prompt and choose the first token."""
        ...

    def verify(self, draft: Sequence[int]) -> Verdict:
        """Accept a prefix of the draft and choose the token behind it."""
        ...


@dataclass(frozen=True)
class MtpDrafter:
    """An MTP chain on any engine."""

    chain: MtpChain
    graph: StepGraph
    length: int

    def draft(self, state: HeadState) -> list[int]:
        """`length` greedy tokens."""
        return [step.token_id for step in self.chain.run(self.graph, state, self.length)]


class NoDrafter:
    """Plain decoding: nothing is drafted, every round is one token."""

    def draft(self, state: HeadState) -> list[int]:
        """No tokens."""
        return []


@dataclass(frozen=True)
class Round:
    """One round. `emitted` is what was committed: accepted and bonus tokens, cut at a stop token or the limit.

    The first round is the prefill: it drafts nothing and its bonus is the first new token.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    bonus: int
    emitted: tuple[int, ...]
    finished: bool


def decode(verifier: Verifier, drafter: Drafter, prompt: Sequence[int], max_new_tokens: int) -> Iterator[Round]:
    """Yield rounds until a stop token or `max_new_tokens` tokens, exactly; the stop token is emitted."""
    verdict = verifier.prefill(prompt)
    drafted: tuple[int, ...] = ()
    remaining = max_new_tokens
    while True:
        emitted = _cut((*verdict.accepted, verdict.bonus), remaining, verifier.stop_ids)
        remaining -= len(emitted)
        finished = remaining == 0 or emitted[-1] in verifier.stop_ids
        yield Round(drafted, verdict.accepted, verdict.bonus, emitted, finished)
        if finished:
            return
        # A round commits one token more than it drafts: never draft beyond the limit.
        room = remaining - 1
        drafted = tuple(drafter.draft(verdict.state)[:room]) if room else ()
        verdict = verifier.verify(drafted)


def _cut(tokens: tuple[int, ...], limit: int, stop_ids: frozenset[int]) -> tuple[int, ...]:
    kept: list[int] = []
    for token in tokens[:limit]:
        kept.append(token)
        if token in stop_ids:
            break
    return tuple(kept)
