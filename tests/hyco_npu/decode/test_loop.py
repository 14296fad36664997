"""Loop and target with scripted sides: text equal to plain greedy, exact limits, nothing behind a stop token."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyco_npu.decode import clock, loop
from hyco_npu.decode.acceptance import Epsilon, Exact, Typical
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.loop import Round, decode
from hyco_npu.decode.protocols import HeadUpdate, Reply
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.target import SERVER_ACCEPT, SERVER_FORWARD, SERVER_STATE, Target, cut
from hyco_npu.decode.tree import DraftTree, GrowingTree
from tests.hyco_npu.decode.scripted import ScriptedDrafter, ScriptedVerifier, chain_plan, fixed_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Text = tuple[int, ...]
    Plan = Callable[[Text, int], DraftTree]

STOP = 106
GREEDY = Exact(Sampling())
LONG = [10 + i % 90 for i in range(140)]


def emitted(rounds: list[Round]) -> list[int]:
    return [token for one in rounds for token in one.emitted]


def run(verifier: ScriptedVerifier, plan: Plan, limit: int, prompt: Sequence[int] = (2,)) -> list[Round]:
    return list(decode(Target(verifier, GREEDY), ScriptedDrafter(plan), prompt, limit))


def writes(text: Sequence[int], wrong: bool = False, length: int = 4) -> tuple[ScriptedVerifier, Plan]:
    """A verifier that writes `text` and a drafter of chains that knows it, or is wrong at every token."""
    logits_of = fixed_text(text)
    return ScriptedVerifier(logits_of, (1, STOP)), chain_plan(lambda t: int(logits_of(t).argmax()) + wrong, length)


# --- greedy text


class RandomModel:
    """A deterministic function of the last two tokens; few levels of logits, so ties are exact and frequent."""

    def __init__(self, seed: int, vocabulary: int, levels: int) -> None:
        self.seed, self.vocabulary, self.levels = seed, vocabulary, levels
        self.logits_of = cache(self._logits_of)

    def _logits_of(self, text: Text) -> np.ndarray:
        rng = np.random.default_rng([self.seed, *text[-2:]])
        return rng.integers(0, self.levels, self.vocabulary).astype(np.float32)

    def best(self, text: Text) -> int:
        row = self.logits_of(text).tolist()
        return row.index(max(row))

    def greedy(self, text: Text, limit: int, stop: int) -> list[int]:
        out: list[int] = []
        while len(out) < limit and stop not in out:
            out.append(self.best((*text, *out)))
        return out


def reversed_siblings(model: RandomModel) -> Plan:
    """All tokens as siblings, the greedy one last, and the tree goes on behind it."""

    def plan(text: Text, max_depth: int) -> DraftTree:
        tree, node, path = GrowingTree(text[-1]), 0, text
        for _ in range(min(3, max_depth)):
            best = model.best(path)
            order = [token for token in range(model.vocabulary) if token != best]
            node = tree.add_all(node, [(token, -1.0) for token in [*order, best]], "slm")[-1]
            path = (*path, best)
        return tree.trim(len(tree), max_depth).tree

    return plan


def random_trees(model: RandomModel) -> Plan:
    """A tree by chance, another behind every text; now and then no draft at all."""

    def plan(text: Text, max_depth: int) -> DraftTree:
        rng, tree = np.random.default_rng([model.seed, *text]), GrowingTree(text[-1])
        nodes = int(rng.integers(0, 12))
        for _ in range(nodes):
            tree.add(int(rng.integers(len(tree))), int(rng.integers(model.vocabulary)), -float(rng.random()), "mtp")
        return tree.trim(nodes, max_depth).tree

    return plan


def one_level(model: RandomModel) -> Plan:
    """A tree of depth 1 with two children; the likelier is the greedy token."""

    def plan(text: Text, max_depth: int) -> DraftTree:
        best = model.best(text)
        tokens = (text[-1], (best + 1) % model.vocabulary, best)
        return DraftTree(tokens, (None, 0, 0), (0.0, -1.0, -1.0), ("root", "slm", "mtp"))

    return plan


PLANS: dict[str, Callable[[RandomModel], Plan]] = {
    "always right": lambda model: chain_plan(model.best, 4),
    "always wrong": lambda model: chain_plan(lambda text: (model.best(text) + 1) % model.vocabulary, 4),
    "length 1": lambda model: chain_plan(model.best, 1),
    "one level": one_level,
    "random": random_trees,
    "reversed siblings": reversed_siblings,
}
RULES = (
    GREEDY,
    *(Epsilon(Sampling(), 0.005, order) for order in ("sample_first", "max_p", "longest")),
    Typical(Sampling()),
)


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocabulary=st.integers(2, 9),
    levels=st.sampled_from([1, 2, 4, 1000]),
    limit=st.integers(1, 14),
    rule=st.sampled_from(RULES),
)
def test_at_temperature_0_the_text_is_plain_greedy(
    name: str, seed: int, vocabulary: int, levels: int, limit: int, rule: Any
) -> None:
    model = RandomModel(seed, vocabulary, levels)
    prompt, stop = (0, vocabulary - 1), seed % (vocabulary + 3)
    verifier = ScriptedVerifier(model.logits_of, (stop,))
    target = Target(verifier, rule)
    rounds = list(decode(target, ScriptedDrafter(PLANS[name](model)), prompt, limit))
    expected = model.greedy(prompt, limit, stop)
    assert emitted(rounds) == expected
    # rejected rows leave nothing: keys and values are those of the text but its last token
    assert verifier.cache == [*prompt, *expected[:-1]]
    assert verifier.length == len(prompt) + len(expected)
    assert [one.reply.finished for one in rounds] == [False] * (len(rounds) - 1) + [True]


def test_a_draft_that_is_always_right_emits_five_tokens_a_round() -> None:
    rounds = run(*writes(LONG), 21)
    assert [len(one.emitted) for one in rounds] == [1, 5, 5, 5, 5]
    assert [one.reply.accepted for one in rounds] == [(), *[(1, 2, 3, 4)] * 4]


def test_a_draft_that_is_always_wrong_emits_one_token_a_round() -> None:
    rounds = run(*writes(LONG, wrong=True), 9)
    assert [one.emitted for one in rounds] == [(token,) for token in LONG[:9]]
    assert all(one.reply.accepted == () and one.reply.bonus is not None for one in rounds)


# --- the limit


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 128])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("wrong", [False, True], ids=["100 %", "0 %"])
def test_the_limit_is_exact_whatever_is_accepted(limit: int, length: int, wrong: bool) -> None:
    verifier, plan = writes(LONG, wrong, length)
    rounds = run(verifier, plan, limit)
    assert emitted(rounds) == LONG[:limit]
    assert verifier.cache == [2, *LONG[: limit - 1]]


def test_no_draft_reaches_beyond_the_limit() -> None:
    rounds = run(*writes(LONG), 8)
    # after 1 + 5 tokens two are left: one may be drafted, the other is the bonus
    assert [one.tree.nodes for one in rounds] == [0, 4, 1]
    # after 1 + 5 + 5 tokens one is left: it is the bonus, and nobody is asked for a draft
    verifier, plan = writes(LONG)
    drafter = ScriptedDrafter(plan)
    rounds = list(decode(Target(verifier, GREEDY), drafter, [2], 12))
    assert [one.tree.nodes for one in rounds] == [0, 4, 4, 0]
    assert drafter.calls == ["begin", *["draft", "while_waiting", "commit"] * 2, "commit"]


def test_a_limit_that_ends_inside_the_path_leaves_no_bonus() -> None:
    # cut to 2: the path has two tokens, so both are accepted and the bonus is not emitted
    target = Target(ScriptedVerifier(fixed_text(LONG)), GREEDY)
    target.prefill([2], 3)
    reply = target.answer(DraftTree.chain(LONG[:4], "mtp"))
    assert (reply.emitted, reply.accepted, reply.bonus) == (tuple(LONG[1:3]), (1, 2), None)
    assert (reply.committed, reply.finished) == ((1,), True)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_text_that_just_fits_never_leaves_the_verifiers_positions(wrong: bool) -> None:
    for limit in (1, 2, 6):
        verifier, plan = writes(LONG, wrong)
        verifier.max_positions = 3 + limit
        assert emitted(run(verifier, plan, limit, prompt=[2, 3, 4])) == LONG[2 : 2 + limit]
        assert verifier.deepest <= verifier.max_positions


def test_a_text_that_does_not_fit_is_refused_before_anything_is_run() -> None:
    verifier, plan = writes(LONG)
    verifier.max_positions = 7
    with pytest.raises(DecodeError, match="5 tokens of text and 3 new ones are 8, the verifier holds 7"):
        run(verifier, plan, 3, prompt=[2] * 5)
    assert verifier.cache == []
    assert len(emitted(run(verifier, plan, 2, prompt=[2] * 5))) == 2
    # the text has its 7 tokens: no further turn fits
    with pytest.raises(DecodeError, match="8 tokens of text and 1 new ones are 9, the verifier holds 7"):
        run(verifier, plan, 1, prompt=[2])


@pytest.mark.parametrize(("prompt", "limit"), [([], 5), ([2], 0), ([2], -1)])
def test_a_prompt_and_room_are_needed(prompt: list[int], limit: int) -> None:
    with pytest.raises(DecodeError, match=f"{len(prompt)} prompt tokens and {limit} new ones"):
        run(*writes(LONG), limit, prompt)


# --- stop tokens


def stops_at(text: list[int]) -> tuple[list[Round], ScriptedVerifier]:
    verifier, plan = writes([*text, 9, 9, 9, 9, 9, 9])
    return run(verifier, plan, 50), verifier


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("stop", [1, STOP])
def test_nothing_is_emitted_or_kept_behind_a_stop_token(place: int, stop: int) -> None:
    text = [*range(10, 10 + place), stop]
    rounds, verifier = stops_at(text)
    assert emitted(rounds) == text
    assert verifier.cache == [2, *text[:-1]]


def test_a_stop_token_in_the_middle_of_the_accepted_path() -> None:
    rounds, verifier = stops_at([7, 5, STOP])
    # the verifier agrees with all of [5, 106, 9, 9]
    assert rounds[-1].tree.token_ids == (7, 5, STOP, 9, 9)
    assert rounds[-1].reply.accepted == (1, 2)
    assert rounds[-1].emitted == (5, STOP)
    assert rounds[-1].reply.bonus is None
    assert rounds[-1].reply.committed == (1,)
    assert verifier.commits[-1] == ((1,), STOP)


def test_a_stop_token_as_the_first_draft() -> None:
    rounds, verifier = stops_at([7, STOP])
    assert rounds[-1].reply.accepted == (1,)
    assert rounds[-1].emitted == (STOP,)
    assert verifier.commits[-1] == ((), STOP)


def test_a_stop_token_as_the_bonus() -> None:
    rounds, verifier = stops_at([7, 10, 11, 12, 13, STOP])
    assert rounds[-1].emitted == (10, 11, 12, 13, STOP)
    assert rounds[-1].reply.bonus == STOP
    assert verifier.commits[-1] == ((1, 2, 3, 4), STOP)


def test_a_stop_token_behind_the_prompt_ends_the_text_there() -> None:
    rounds, verifier = stops_at([STOP])
    assert [one.emitted for one in rounds] == [(STOP,)]
    assert verifier.commits == [((), STOP)]


def test_a_drafted_stop_token_that_is_rejected_ends_nothing() -> None:
    verifier, _ = writes(LONG)
    assert emitted(run(verifier, chain_plan(lambda _: STOP, 4), 9)) == LONG[:9]


@pytest.mark.parametrize(
    ("tokens", "limit", "kept"),
    [
        ((5, 6, 7), 9, 3),
        ((5, 6, 7), 2, 2),
        ((5, 106, 7), 9, 2),
        ((106, 5), 9, 1),
        ((5, 106), 1, 1),
        ((5, 1, 106), 9, 2),
    ],
)
def test_cut(tokens: Text, limit: int, kept: int) -> None:
    assert cut(tokens, limit, frozenset({1, 106})) == tokens[:kept]


# --- turns, sides, time


@pytest.mark.parametrize("ended_by", ["limit", "stop token"])
def test_a_further_turn_follows_all_that_was_emitted(ended_by: str) -> None:
    model = RandomModel(3, 8, 1000)
    first = model.greedy((0, 1), 9, stop=99)
    stop_ids = (first[4],) if ended_by == "stop token" else ()
    said = first[: first.index(first[4]) + 1] if stop_ids else first
    verifier = ScriptedVerifier(model.logits_of, stop_ids)
    target, drafter = Target(verifier, GREEDY), ScriptedDrafter(random_trees(model))
    assert emitted(list(decode(target, drafter, [0, 1], 9))) == said
    text = (0, 1, *said, 5, 6)
    assert emitted(list(decode(target, drafter, [5, 6], 7))) == model.greedy(text, 7, stop_ids[0] if stop_ids else 99)
    assert tuple(verifier.cache[: len(text)]) == text
    assert drafter.text == (*verifier.cache, verifier.pending)


def test_the_first_round_is_the_prefill() -> None:
    first = run(*writes(LONG), 3, prompt=[2, 3])[0]
    assert first.tree == DraftTree.root_only(3)
    assert (first.reply.accepted, first.emitted) == ((), (LONG[1],))


def test_a_tree_that_does_not_follow_the_text_is_refused() -> None:
    def alien(text: Text, max_depth: int) -> DraftTree:
        return DraftTree.chain([text[-1] + 1, 5], "slm")

    def too_deep(text: Text, max_depth: int) -> DraftTree:
        return DraftTree.chain([text[-1], *[5] * (max_depth + 1)], "slm")

    with pytest.raises(DecodeError, match=r"begins with token 11 and is 1 deep; it must begin with 10"):
        run(writes(LONG)[0], alien, 5)
    with pytest.raises(DecodeError, match=r"is 5 deep; it must begin with 10 and be at most 4 deep"):
        run(writes(LONG)[0], too_deep, 6)


@pytest.mark.parametrize("ended_by", ["limit", "stop token"])
def test_a_finished_text_takes_no_tree(ended_by: str) -> None:
    verifier = ScriptedVerifier(fixed_text([7, STOP, 9]), (STOP,))
    target = Target(verifier, GREEDY)
    target.prefill([2], 2 if ended_by == "limit" else 50)
    assert target.answer(DraftTree.chain([7, STOP], "mtp")).finished
    with pytest.raises(DecodeError, match="the text is finished"):
        target.answer(DraftTree.chain([STOP, 9], "mtp"))
    assert verifier.cache == [2, 7]


def test_a_seed_repeats_a_text_and_another_gives_another() -> None:
    model = RandomModel(5, 9, 3)

    def text(seed: int) -> list[int]:
        target = Target(ScriptedVerifier(model.logits_of), Exact(Sampling(1.0)), seed)
        return emitted(list(decode(target, ScriptedDrafter(random_trees(model)), [0], 40)))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_time_is_told_by_phase_and_the_readers_time_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    for module in (loop, clock):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    verifier, plan = writes(LONG)
    verify, prefill = verifier.verify, verifier.prefill

    def taking(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            now[0] += seconds
            return function(*args)

        return timed

    verifier.verify, verifier.prefill = taking(4.0, verify), taking(16.0, prefill)  # type: ignore[method-assign]
    verifier.commit = taking(0.5, verifier.commit)  # type: ignore[method-assign]
    rounds = []
    for one in decode(Target(verifier, GREEDY), ScriptedDrafter(taking(2.0, plan)), [2], 11):
        rounds.append(one)
        now[0] += 1000.0
    parts = [{SERVER_FORWARD: forward, SERVER_ACCEPT: 0.0, SERVER_STATE: 0.5} for forward in (16.0, 4.0, 4.0)]
    assert [one.phases for one in rounds] == parts
    # a drafter without phases of its own: its two seconds are what no phase accounts for
    assert [one.seconds for one in rounds] == [16.5, 6.5, 6.5]


def test_the_heads_update_reaches_the_drafter() -> None:
    rounds = run(*writes(LONG), 6)
    assert [one.reply.update.hidden[0] for one in rounds if one.reply.update] == [one.emitted[-1] for one in rounds]


def test_an_update_counts_a_byte_a_value() -> None:
    # design, at released size: 6,144 bytes a token, 2,816 each for hidden state and embedding
    keys = {"sliding": np.zeros((8, 5, 256)), "full": np.zeros((2, 5, 512))}
    update = HeadUpdate(np.zeros(2816), np.zeros(2816), keys, dict(keys))
    assert update.wire_bytes == 5 * 6144 + 2 * 2816


@pytest.mark.parametrize(
    ("accepted", "emitted_tokens", "bonus", "committed"),
    [((), (4,), 4, ()), ((1, 3), (5, 6, 7), 7, (1, 3)), ((1, 3), (5, 6), None, (1,)), ((2,), (5,), None, ())],
)
def test_a_reply_tells_bonus_and_committed_rows(
    accepted: Text, emitted_tokens: Text, bonus: int | None, committed: Text
) -> None:
    reply = Reply(accepted, emitted_tokens, finished=False)
    assert (reply.bonus, reply.committed) == (bonus, committed)
