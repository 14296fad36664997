"""The window of keys and values against lists of rows, and against a run that never drafted, bit for bit."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from export.errors import ExportError
from export.kv_window import KvRows, KvWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHAPES = {0: (1, 2), 3: (2, 3)}
WINDOW, PREFILL_ROWS, DRAFT_ROWS = 1024, 128, 32
"""As the product has them."""


def rows_of(contents: Sequence[int], dtype: str = "float32", padding: int = 0) -> dict[int, KvRows]:
    """Keys and values made of the numbers `contents`, another in every channel, and rubbish in the padding."""
    numbers = np.asarray([*contents, *[77] * padding], np.int64)
    result = {}
    for owner, (heads, dim) in SHAPES.items():
        channels = 31 * owner + np.arange(heads * dim).reshape(heads, dim, 1)
        keys = ((numbers * 7 + channels) % 251 - 125).astype(dtype)[None]
        values = ((numbers * 11 + channels) % 241 - 120).astype(dtype)[None].swapaxes(2, 3)
        result[owner] = KvRows(keys, values)
    return result


def expected_slots(contents: Sequence[int], window: int, dtype: str) -> dict[int, KvRows]:
    """All slots of a window that holds `contents` from the left and zeros behind them."""
    filled, slots = rows_of(contents, dtype), {}
    for owner, rows in filled.items():
        spare = [(0, 0), (0, 0), (0, 0), (0, 0)]
        keys = np.pad(rows.keys, [*spare[:3], (0, window - len(contents))])
        values = np.pad(rows.values, [*spare[:2], (0, window - len(contents)), (0, 0)])
        slots[owner] = KvRows(keys, values)
    return slots


def assert_same(found: Mapping[int, KvRows], expected: Mapping[int, KvRows]) -> None:
    assert found.keys() == expected.keys()
    for owner, rows in expected.items():
        for ours, theirs in ((found[owner].keys, rows.keys), (found[owner].values, rows.values)):
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes()


class WindowMachine(RuleBasedStateMachine):
    """Any order of calls, against two lists: the accepted rows with the number of those left, and the draft."""

    @initialize(window=st.integers(1, 9), dtype=st.sampled_from(["int8", "float16", "float32", "uint8"]))
    def start(self, window: int, dtype: str) -> None:
        self.window, self.dtype, self.fresh = window, dtype, 0
        self.cache = KvWindow(SHAPES, window, dtype)
        self.accepted: list[int] = []
        self.left = 0
        self.draft: list[tuple[int, int]] = []

    @rule(depths=st.lists(st.integers(0, 4), max_size=12), padding=st.integers(0, 3))
    def append(self, depths: list[int], padding: int) -> None:
        contents = list(range(self.fresh, self.fresh + len(depths)))
        self.fresh += len(depths)
        positions = [len(self.accepted) + depth for depth in depths]
        self.cache.append(rows_of(contents, self.dtype, padding), positions)
        self.draft += zip(positions, contents, strict=True)

    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        """Any rising path that continues the text, of any length; of the rows behind it, some stay drafts."""
        kept: list[int] = []
        for index, (position, _) in enumerate(self.draft):
            if position == len(self.accepted) + len(kept) and data.draw(st.booleans()):
                kept.append(index)
        behind = len(self.accepted) + len(kept)
        others = [index for index, (position, _) in enumerate(self.draft) if position >= behind and index not in kept]
        still = [index for index in others if data.draw(st.booleans())]
        self.cache.accept(kept, still)
        self.accepted += [self.draft[index][1] for index in kept]
        self.left = min(self.window, self.left + len(kept))
        self.draft = [self.draft[index] for index in still]

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        first = len(self.accepted) - self.left
        position = data.draw(st.integers(0, len(self.accepted)))
        if 0 < first >= position:
            with pytest.raises(ExportError, match="prefill the text again"):
                self.cache.roll_back(position)
            return
        self.cache.roll_back(position)
        self.accepted, self.left, self.draft = self.accepted[:position], position - first, []

    @invariant()
    def equals_the_lists(self) -> None:
        if not hasattr(self, "cache"):
            return
        first = len(self.accepted) - self.left
        assert self.cache.next_position == len(self.accepted)
        assert list(self.cache.positions) == list(range(first, len(self.accepted)))
        assert list(self.cache.draft_positions) == [position for position, _ in self.draft]
        if len(self.draft) > self.window:
            with pytest.raises(ExportError, match="accept some first"):
                self.cache.view()
            return
        view = self.cache.view()
        kept = self.accepted[first:] + [content for _, content in self.draft]
        kept = kept[-self.window :]
        assert (view.count, view.drafted, view.accepted) == (len(kept), len(self.draft), len(kept) - len(self.draft))
        assert view.next_position == len(self.accepted)
        assert_same(view.caches, expected_slots(kept, self.window, self.dtype))


TestAgainstLists = WindowMachine.TestCase
TestAgainstLists.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)


@dataclass
class Runner:
    """A text of which every row depends on all tokens before it, as keys and values of a model do."""

    window: int = WINDOW
    dtype: str = "int8"
    state: int = 0
    states: list[int] = field(default_factory=list)
    cache: KvWindow = field(init=False)

    def __post_init__(self) -> None:
        self.cache = KvWindow(SHAPES, self.window, self.dtype)

    def prefill(self, tokens: Sequence[int], chunk: int) -> None:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            self.draft([None, *range(len(part) - 1)], part, chunk - len(part))
            self.accept(range(len(part)))

    def draft(self, parents: Sequence[int | None], tokens: Sequence[int], padding: int) -> None:
        """Rows of a tree; their contents follow from their paths."""
        self.states = []
        self.continue_draft(parents, tokens, padding)

    def continue_draft(self, parents: Sequence[int | None], tokens: Sequence[int], padding: int) -> None:
        """More rows of the same tree."""
        stored, positions = len(self.states), list(self.cache.draft_positions)
        for parent, token in zip(parents, tokens, strict=True):
            before = self.state if parent is None else self.states[parent]
            self.states.append(zlib.crc32(bytes([token]), before))
            positions.append(self.cache.next_position if parent is None else positions[parent] + 1)
        self.cache.append(rows_of(self.states[stored:], self.dtype, padding), positions[stored:])

    def accept(self, kept: Sequence[int]) -> None:
        self.cache.accept(kept)
        self.state = self.states[kept[-1]] if len(kept) else self.state


PROMPTS = [1, 127, 128, 129, 257, WINDOW - 1, WINDOW, WINDOW + 1]
NEARLY_FULL = [WINDOW - DRAFT_ROWS - 1, WINDOW - DRAFT_ROWS, WINDOW - DRAFT_ROWS + 1, 2 * WINDOW - 1]


@st.composite
def trees(draw: st.DrawFn) -> list[int | None]:
    """Parents of 32 rows or fewer in chains, bushes and mixtures; several rows may stand at the root."""
    others = draw(st.just(DRAFT_ROWS) | st.integers(1, DRAFT_ROWS)) - 1
    step = draw(st.sampled_from([st.just(1), st.integers(1, 2), st.integers(1, DRAFT_ROWS)]))
    back = draw(st.lists(step, min_size=others, max_size=others))
    return [None, *[row - step if step <= row else None for row, step in enumerate(back, start=1)]]


def path_to(parents: Sequence[int | None], row: int | None) -> list[int]:
    """Rows from the root to `row`, both with it; none for None."""
    return [] if row is None else [*path_to(parents, parents[row]), row]


class Script:
    """A drafting run beside the list of the text's tokens: the run that never drafted, in plain Python.

    A row's contents follow from all tokens up to it, so no two rows of a run are alike; the window has `left` of them.
    """

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.runner = data, Runner()
        self.tokens: list[int] = []
        self.left = 0

    def check(self, draft: Sequence[int] = ()) -> None:
        """All that the window shows, with the rows' contents `draft` behind the accepted ones."""
        states, state = [], 0
        for token in self.tokens:
            state = zlib.crc32(bytes([token]), state)
            states.append(state)
        first = len(self.tokens) - self.left
        slots = [*states[first:], *draft][-WINDOW:]
        cache, view = self.runner.cache, self.runner.cache.view()
        assert (view.count, view.drafted, view.next_position) == (len(slots), len(draft), len(self.tokens))
        assert cache.positions == range(first, len(self.tokens))
        assert_same(view.caches, expected_slots(slots, WINDOW, "int8"))

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.left = min(WINDOW, self.left + len(tokens))

    def prefill(self, count: int) -> None:
        tokens = [(7 * place + len(self.tokens)) % 256 for place in range(count)]
        self.runner.prefill(tokens, PREFILL_ROWS)
        self.extend(tokens)

    def draft(self) -> tuple[list[int | None], list[int]]:
        """A tree in one to three passes, each of which reads the rows that those before it stored."""
        parents = self.data.draw(trees())
        start = self.data.draw(st.integers(0, 255))
        tokens = [(start + row) % 256 for row in range(len(parents))]
        cuts = self.data.draw(st.sets(st.integers(1, len(parents)), max_size=2))
        self.runner.states = []
        for begin, end in pairwise(sorted({0, *cuts, len(parents)})):
            self.runner.continue_draft(parents[begin:end], tokens[begin:end], DRAFT_ROWS - (end - begin))
            self.check(self.runner.states)
        return parents, tokens

    def accept(self, parents: Sequence[int | None], tokens: Sequence[int]) -> None:
        """The path to any row, the last and none among them."""
        last = len(parents) - 1
        kept = path_to(parents, self.data.draw(st.none() | st.just(last) | st.integers(0, last)))
        self.runner.accept(kept)
        self.extend([tokens[row] for row in kept])

    def roll_back(self) -> None:
        """A few tokens or many, with a draft or without; refused where the token before has slid out."""
        length, first = len(self.tokens), len(self.tokens) - self.left
        position = length - self.data.draw(st.integers(0, min(40, length)) | st.integers(0, length))
        if 0 < first >= position:
            draft = self.runner.states if self.runner.cache.draft_positions else []
            with pytest.raises(ExportError, match="prefill the text again"):
                self.runner.cache.roll_back(position)
            self.check(draft)
            self.runner.accept([])
            return
        self.runner.cache.roll_back(position)
        self.tokens, self.left = self.tokens[:position], position - first
        self.runner.state = zlib.crc32(bytes(self.tokens))


@pytest.mark.parametrize("prompt", [*PROMPTS, *NEARLY_FULL])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_drafting_leaves_no_trace(prompt: int, data: st.DataObject) -> None:
    """Rounds of trees of which a path or nothing is accepted, roll backs and further turns of a conversation."""
    script = Script(data)
    script.prefill(prompt)
    script.check()
    steps = st.sampled_from(["accept", "accept", "roll back a draft", "roll back", "turn"])
    for step in data.draw(st.lists(steps, min_size=1, max_size=8)):
        if step == "turn":
            script.prefill(data.draw(st.integers(1, 200)))
        elif step == "roll back":
            script.roll_back()
        else:
            drafted = script.draft()
            if step == "accept":
                script.accept(*drafted)
            else:
                script.roll_back()
        script.check()


@pytest.mark.parametrize("prompt", [1, 129, *NEARLY_FULL])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_path_accepted_in_pieces_equals_one_accepted_at_once(prompt: int, data: st.DataObject) -> None:
    """Between the pieces any of the rows behind the first stay drafts, those of the second among them."""
    parents = data.draw(trees())
    path = path_to(parents, data.draw(st.integers(0, len(parents) - 1)))
    cut = data.draw(st.integers(0, len(path)))
    pieces, whole = Runner(), Runner()
    for runner in (pieces, whole):
        runner.prefill([(7 * place) % 256 for place in range(prompt)], PREFILL_ROWS)
        runner.draft(parents, list(range(len(parents))), 0)
    first, second = path[:cut], path[cut:]
    below = [row for row in range(len(parents)) if row not in first and path_to(parents, row)[:cut] == first]
    still = [row for row in below if row in second or data.draw(st.booleans())]
    pieces.cache.accept(first, still)
    assert pieces.cache.draft_positions == tuple(prompt + len(path_to(parents, row)) - 1 for row in still)
    view, left = pieces.cache.view(), min(WINDOW, prompt + cut)
    assert (view.count, view.drafted) == (min(WINDOW, left + len(still)), len(still))
    drafted = rows_of([whole.states[row] for row in still], "int8")
    for owner, rows in view.caches.items():
        np.testing.assert_array_equal(rows.keys[..., view.accepted : view.count], drafted[owner].keys)
        np.testing.assert_array_equal(rows.values[:, :, view.accepted : view.count], drafted[owner].values)
    pieces.cache.accept([still.index(row) for row in second])
    whole.cache.accept(path)
    assert pieces.cache.positions == whole.cache.positions
    assert_same(pieces.cache.view().caches, whole.cache.view().caches)


@pytest.mark.parametrize("prompt", [*PROMPTS, *NEARLY_FULL])
def test_all_rows_rejected(prompt: int) -> None:
    """The view is the very same after rounds in which nothing was accepted, also where the window is nearly full."""
    runner = Runner()
    runner.prefill([position % 5 for position in range(prompt)], PREFILL_ROWS)
    before = {owner: KvRows(rows.keys.copy(), rows.values.copy()) for owner, rows in runner.cache.view().caches.items()}
    for _ in range(3):
        runner.draft([None, *range(31)], list(range(32)), 0)
        assert runner.cache.view().count == min(prompt + 32, WINDOW)
        runner.accept([])
        assert_same(runner.cache.view().caches, before)
    assert runner.cache.next_position == prompt


@pytest.mark.parametrize("chunk", [1, 7, 16, 32, 128, 400])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_chunks_of_any_size_give_the_last_tokens(prompt: int, chunk: int) -> None:
    tokens = np.random.default_rng(prompt).integers(0, 200, size=prompt).tolist()
    runner, states, state = Runner(), [], 0
    runner.prefill(tokens, chunk)
    for token in tokens:
        state = zlib.crc32(bytes([token]), state)
        states.append(state)
    assert_same(runner.cache.view().caches, expected_slots(states[-WINDOW:], WINDOW, "int8"))
    assert list(runner.cache.positions) == list(range(prompt))[-WINDOW:]


def test_roll_back_and_go_on_equals_never_having_been_there() -> None:
    went, stayed = Runner(), Runner()
    went.prefill([1, 2, 3, 9, 9, 9], 4)
    went.cache.roll_back(3)
    stayed.prefill([1, 2, 3], 4)
    assert_same(went.cache.view().caches, stayed.cache.view().caches)
    went.state = stayed.state
    for runner in (went, stayed):
        runner.prefill([4, 5], 4)
    assert_same(went.cache.view().caches, stayed.cache.view().caches)


def test_the_window_keeps_no_hold_on_what_it_is_given() -> None:
    cache, rows = KvWindow(SHAPES, 4, "int8"), rows_of([5], "int8")
    cache.append(rows, [0])
    cache.accept([0])
    rows[0].keys[...] = 99
    assert_same(cache.view().caches, expected_slots([5], 4, "int8"))
    with pytest.raises(ValueError, match="read-only"):
        cache.view().caches[0].keys[...] = 0


def test_without_a_draft_the_view_copies_nothing() -> None:
    cache = KvWindow(SHAPES, 4)
    assert np.shares_memory(cache.view().caches[3].keys, cache.view().caches[3].keys)
    assert cache.view().caches[3].keys.flags.c_contiguous


@pytest.mark.parametrize(
    ("kept", "still", "message"),
    [
        ([4], [], "4 were drafted"),
        ([-1], [], "4 were drafted"),
        ([1, 0], [], "they must rise"),
        ([0, 0], [], "they must rise"),
        ([1], [], r"rows at positions \[4\] cannot be kept: the next one is 3"),
        ([0, 2, 3], [], r"rows at positions \[3, 4, 4\] cannot be kept"),
        ([], [4], "4 were drafted"),
        ([0], [3, 2], "they must rise"),
        ([0, 1], [1], r"rows \[1\] are to be accepted and to stay drafts"),
        ([0, 1], [2], "position 4 cannot stay a draft: the text then has 5 tokens"),
    ],
)
def test_wrong_paths_are_refused_and_change_nothing(kept: list[int], still: list[int], message: str) -> None:
    runner = Runner(window=6)
    runner.prefill([1, 2, 3], 4)
    runner.draft([None, 0, 0, 0], [4, 5, 6, 7], 0)
    before = {owner: rows.take(np.arange(6)) for owner, rows in runner.cache.view().caches.items()}
    with pytest.raises(ExportError, match=message):
        runner.cache.accept(kept, still)
    assert_same(runner.cache.view().caches, before)
    assert runner.cache.draft_positions == (3, 4, 4, 4)


def test_wrong_rows_are_refused_and_change_nothing() -> None:
    cache = KvWindow(SHAPES, 4, "int8")
    good = rows_of([1], "int8")
    cases = [
        ({0: good[0]}, [0], r"rows of layers \[0\] were given, the window is of \[0, 3\]"),
        ({0: good[0], 3: good[0]}, [0], r"layer 3: keys are \[1, 1, 2, 1\]"),
        ({0: KvRows(good[0].keys, good[0].keys), 3: good[3]}, [0], r"layer 0: .* values \[1, 1, 2, 1\]"),
        (rows_of([1], "float32"), [0], "layer 0: rows are float32 and float32, the window int8"),
        (good, [0, 1], "layer 0: 2 positions, but only 1 rows"),
        (good, [-1], "at position -1, but the text has 0 tokens"),
    ]
    for rows, positions, message in cases:
        with pytest.raises(ExportError, match=message):
            cache.append(rows, positions)
    assert cache.draft_positions == ()
    with pytest.raises(ExportError, match="a window of 0 tokens"):
        KvWindow(SHAPES, 0)
