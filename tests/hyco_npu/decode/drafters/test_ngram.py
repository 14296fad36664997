"""Lookup against a search through the whole text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyco_npu.decode.drafters.none import NoDrafter
from hyco_npu.decode.protocols import Reply
from hyco_npu.decode.tree import DraftTree

from .builders import Sides, assert_sound, config_of, paths_of, random_path

LONGEST, TOKENS = 3, 4


def sides_of(nodes: int, shortest: int = 1) -> Sides:
    section = {"longest": LONGEST, "shortest": shortest, "tokens": TOKENS}
    return Sides(config_of("ngram", nodes=nodes, ngram=section))


def searched(text: list[int], nodes: int, shortest: int, max_depth: int) -> set[tuple[int, ...]]:
    """All windows of the text from its end on, the longest n-gram first; paths until the tree is full."""
    paths: list[tuple[int, ...]] = []
    for length in range(LONGEST, shortest - 1, -1):
        starts = [s for s in range(len(text) - length) if text[s : s + length] == text[len(text) - length :]]
        for start in reversed(starts):
            followed = text[start + length :][: min(TOKENS, max_depth)]
            for end in range(1, len(followed) + 1):
                path = tuple(followed[:end])
                if path not in paths and len(paths) < nodes and (end == 1 or path[:-1] in paths):
                    paths.append(path)
        if starts:
            break
    return set(paths)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_drafts_equal_a_search(data: st.DataObject) -> None:
    nodes, shortest = data.draw(st.integers(1, 9)), data.draw(st.integers(1, LONGEST))
    tokens = st.integers(0, data.draw(st.sampled_from([1, 2, 5])))
    sides = sides_of(nodes, shortest)
    sides.begin(data.draw(st.lists(tokens, min_size=1, max_size=30)), 0)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    for _ in range(4):
        max_depth = data.draw(st.integers(1, 6))
        tree = sides.drafter.draft(max_depth)
        sides.drafter.while_waiting()
        assert_sound(tree, nodes, max_depth)
        assert tree.token_ids[0] == sides.text.tokens[-1]
        assert paths_of(tree).keys() == searched(sides.text.tokens, nodes, shortest, max_depth)
        sides.answer(tree, random_path(tree, rng), data.draw(tokens))
    sides.begin(data.draw(st.lists(tokens, min_size=1, max_size=5)), 1)
    assert paths_of(sides.drafter.draft(9)).keys() == searched(sides.text.tokens, nodes, shortest, 9)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ([1, 2, 3, 9, 1, 2, 3, 8, 5, 1, 2, 3], (8, 5, 1, 2)),  # the most recent of two
        ([7, 1, 2, 3, 4, 5, 6, 2, 3, 9, 9, 1, 2, 3], (4, 5, 6, 2)),  # the longer, though older
        ([4] * 7, (4, 4, 4, 4)),  # an occurrence at the very end gives one token, the one before two, and so on
        ([1, 2, 3], ()),
    ],
)
def test_which_occurrence_is_drafted(text: list[int], path: tuple[int, ...]) -> None:
    sides = sides_of(nodes=TOKENS)
    sides.begin(text[:-1], text[-1])
    assert set(paths_of(sides.drafter.draft(9))) == {path[:end] for end in range(1, len(path) + 1)}


def test_no_drafter_drafts_the_root() -> None:
    drafter = NoDrafter()
    drafter.begin([3, 4], Reply((), (7,), finished=False))
    drafter.while_waiting()
    assert drafter.draft(5) == DraftTree.root_only(7)
    drafter.commit(DraftTree.root_only(7), Reply((), (9,), finished=False))
    assert drafter.draft(5) == DraftTree.root_only(9)
