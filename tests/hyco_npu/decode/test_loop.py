"""The loop with scripted sides: limits, stop tokens inside a path, and what counts as emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hyco_npu.decode.loop import NoDrafter, Round, decode
from hyco_npu.decode.verifier import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP = 106


class ScriptedVerifier:
    """Writes a fixed text: accepts what matches it."""

    stop_ids = frozenset({1, STOP})

    def __init__(self, text: Sequence[int]) -> None:
        self.text, self.done = list(text), 0
        self.state: Any = None

    def prefill(self, prompt: Sequence[int]) -> Verdict:
        self.done = 1
        return Verdict((), self.text[0], self.state)

    def verify(self, draft: Sequence[int]) -> Verdict:
        accepted = []
        for token in draft:
            if token != self.text[self.done + len(accepted)]:
                break
            accepted.append(token)
        self.done += len(accepted) + 1
        return Verdict(tuple(accepted), self.text[self.done - 1], self.state)


class ScriptedDrafter:
    """Drafts from its own idea of the text, `length` tokens from where the verifier stands."""

    def __init__(self, verifier: ScriptedVerifier, text: Sequence[int], length: int = 4) -> None:
        self.verifier, self.text, self.length = verifier, list(text), length

    def draft(self, state: object) -> list[int]:
        return self.text[self.verifier.done : self.verifier.done + self.length]


def run(text: Sequence[int], drafted: Sequence[int], limit: int, length: int = 4) -> list[Round]:
    verifier = ScriptedVerifier([*text, *range(200, 240)])
    drafter = ScriptedDrafter(verifier, [*drafted, *range(300, 340)], length)
    return list(decode(verifier, drafter, [2], limit))


def emitted(rounds: list[Round]) -> list[int]:
    return [token for one in rounds for token in one.emitted]


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6, 7, 20])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("right", [True, False], ids=["always right", "always wrong"])
def test_the_limit_is_exact_whatever_is_drafted(limit: int, length: int, right: bool) -> None:
    text = list(range(10, 40))
    rounds = run(text, text if right else [t + 100 for t in text], limit, length)
    assert emitted(rounds) == text[:limit]
    assert [one.finished for one in rounds] == [False] * (len(rounds) - 1) + [True]


def test_a_draft_that_is_always_right_commits_five_tokens_a_round() -> None:
    text = list(range(10, 40))
    rounds = run(text, text, 21)
    assert [len(one.emitted) for one in rounds] == [1, 5, 5, 5, 5]


def test_a_draft_never_reaches_beyond_the_limit() -> None:
    text = list(range(10, 40))
    # after 1 + 5 tokens two are left: one may be drafted, the other is the bonus
    assert len(run(text, text, 8)[-1].drafted) == 1


@pytest.mark.parametrize("position", [0, 1, 2, 3, 4, 5, 6])
def test_nothing_is_emitted_after_a_stop_token(position: int) -> None:
    text = [*range(10, 10 + position), STOP, 9, 9, 9, 9, 9, 9]
    assert emitted(run(text, text, 50)) == text[: position + 1]


def test_a_stop_token_in_the_middle_of_the_accepted_path_ends_the_text() -> None:
    rounds = run([7, 5, STOP, 9, 8, 8], [7, 5, STOP, 9, 8, 8], 50)
    assert rounds[-1].accepted == (5, STOP, 9, 8)
    assert rounds[-1].emitted == (5, STOP)


def test_plain_decoding_is_a_round_a_token() -> None:
    verifier = ScriptedVerifier([5, 6, 7, STOP])
    assert [one.emitted for one in decode(verifier, NoDrafter(), [2], 50)] == [(5,), (6,), (7,), (STOP,)]
