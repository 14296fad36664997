"""Guess rows: where they come from, that they fill a pass and no more, and that only the SLM can give them a score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hyco_npu.decode.config import GuessSettings
from hyco_npu.decode.drafters.guesses import SOURCE, UNSCORED, Guesses
from hyco_npu.decode.drafters.mtp import HeadNodes
from hyco_npu.decode.drafters.ngram_index import NgramIndex
from hyco_npu.decode.tree import ROOT, GrowingTree

from .builders import (
    Sides,
    assert_same_tree,
    assert_sound,
    config_of,
    draft_passes,
    other_token,
    paths_of,
    prompt_of,
    random_path,
)
from .reference import Path, SlowTree, head_chain, head_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.export.tiny import TinyHead
    from tests.export.tiny_slm import TinySlm

NODES, ROWS, STEPS, LONGEST, SHORTEST = 12, 14, 3, 3, 1
CHAIN = (10, 11, 12)


def followers_by_the_book(text: Sequence[int], path: Sequence[int]) -> list[int]:
    """Places behind the longest suffix of text and path, of 1 to 3 tokens, that stands somewhere in the text."""
    whole = [*text, *path]
    for length in range(min(LONGEST, len(whole)), SHORTEST - 1, -1):
        found = [at + length for at in range(len(text) - length) if list(text[at : at + length]) == whole[-length:]]
        if found:
            return found
    return []


@pytest.mark.parametrize("seed", range(5))
def test_places_are_those_behind_the_longest_suffix(seed: int) -> None:
    rng, index, text = np.random.default_rng(seed), NgramIndex(LONGEST, SHORTEST), list[int]()
    for _ in range(12):
        new = rng.integers(4, size=int(rng.integers(1, 6))).tolist()
        index.extend(new)
        text += new
        for length in range(4):
            path = rng.integers(4, size=length).tolist()
            assert index.places(path) == followers_by_the_book(text, path)


def drafted(siblings: bool = True) -> tuple[GrowingTree, HeadNodes]:
    """A chain 10, 11, 12 behind the root 5, a sibling 20 beside its first token, and a runner-up at every depth."""
    tree = GrowingTree(5)
    first = tree.add(ROOT, 10, -0.5, "mtp")
    beside = (tree.add(ROOT, 20, -1.0, "mtp"),) if siblings else ()
    second = tree.add(first, 11, -0.25, "mtp")
    third = tree.add(second, 12, -0.125, "mtp")
    candidates = ([(10, -0.5), (20, -1.0), (30, -2.0)], [(11, -0.25), (31, -3.0)], [(12, -0.125), (32, -4.0)])
    return tree, HeadNodes((first, second, third), beside, candidates)


def paths(tree: GrowingTree, nodes: Sequence[int]) -> list[Path]:
    found = []
    for node in nodes:
        path: list[int] = []
        at: int | None = node
        while at:
            path.append(tree.token(at))
            at = tree.parent(at)
        found.append(tuple(reversed(path)))
    return found


def guess(text: Sequence[int], room: int = 99, max_depth: int = 99, **settings: int) -> list[Path]:
    tree, head = drafted()
    guesses = Guesses(GuessSettings(**{"runners_up": 3, "longest": LONGEST, "shortest": SHORTEST, **settings}))
    guesses.extend(text)
    return paths(tree, guesses.add_to(tree, head, room, max_depth))


def test_without_repetition_they_are_runners_up_and_moved_ends_of_the_chain() -> None:
    # best first: minus what the head gives the path, half a nat for every moved token
    assert guess([1, 2, 3, 5]) == [
        (20, 11),  # 1.0 + 0.25 + 0.5
        (30,),  # 2.0
        (20, 11, 12),  # 1.75 + 0.125 + 0.5
        (30, 11),  # 2.0 + 0.25 + 0.5
        (30, 11, 12),  # 2.75 + 0.125 + 0.5
        (10, 31),  # 0.5 + 3.0
        (10, 31, 12),  # 3.5 + 0.125 + 0.5
        (10, 11, 32),  # 0.5 + 0.25 + 4.0
    ]
    assert guess([1, 2, 3, 5], runners_up=1) == [(20, 11), (20, 11, 12)]


def test_what_followed_before_is_guessed_again_behind_the_chain() -> None:
    text = [7, 12, 40, 41, 42, 8, 5]
    found = guess(text, shortest=1, runners_up=1)
    assert (10, 11, 12, 40) in found
    assert (10, 11, 12, 40, 41, 42, 8) in found


def test_room_and_depth_are_kept_and_parents_come_first() -> None:
    text = [7, 12, 40, 41, 42, 8, 5]
    whole = guess(text)
    for room in range(6):
        assert guess(text, room=room) == whole[:room]
    shallow = guess(text, max_depth=3)
    assert {len(path) for path in shallow} == {1, 2}
    known = {(), *[CHAIN[:n] for n in range(1, 4)], (20,)}
    for path in whole:
        assert path[:-1] in known
        assert path not in known
        known.add(path)


def sides_of(head: TinyHead, slm: TinySlm, guesses: dict[str, int] | None, **changes: Any) -> Sides:
    sections: dict[str, Any] = {
        "mtp": {"steps": STEPS, "width": 2, "sibling_depth": 1},
        "slm": {"children": 4, "passes": 1},
    }
    if guesses is not None:
        sections["guesses"] = guesses
    return Sides(config_of("hybrid", NODES, **sections), head, slm, draft_rows=ROWS, **changes)


SETTINGS = {"runners_up": 3, "longest": LONGEST, "shortest": SHORTEST}


@pytest.mark.parametrize("length", [3, 9])
def test_the_tree_is_that_by_the_book_with_the_guesses_run(
    head: TinyHead, slm: TinySlm, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    add_to = Guesses.add_to

    def watched(self: Guesses, tree: GrowingTree, *arguments: Any) -> list[int]:
        nodes = add_to(self, tree, *arguments)
        seen.extend(paths(tree, nodes))
        return nodes

    monkeypatch.setattr(Guesses, "add_to", watched)
    sides = sides_of(head, slm, SETTINGS)
    sides.begin(prompt_of(length), 8)
    tree = sides.drafter.draft(50)
    assert draft_passes(sides.slm_engine) == [ROWS]
    assert len(seen) == ROWS - 1 - STEPS - 1
    chain, edges = head_paths(head_chain(head, sides.text.state(), STEPS, window=8), 2, 1)
    book = SlowTree(slm, list(sides.text.tokens), NODES, 4)
    book.chain = chain
    for path, log_p in edges.items():
        book.add(path, log_p)
    for path in seen:
        book.add(path, UNSCORED)
    book.grow([(), *edges, *seen])
    found, wanted = paths_of(tree), book.cut()
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose([found[path] for path in found], [wanted[path] for path in found], atol=1e-4)
    unconfirmed = [tree.scores[row] for row in range(tree.rows) if tree.sources[row] == SOURCE]
    assert all(score <= UNSCORED for score in unconfirmed)


@pytest.mark.parametrize("seed", range(3))
def test_any_history_drafts_like_a_fresh_start(head: TinyHead, slm: TinySlm, seed: int) -> None:
    sides, rng = sides_of(head, slm, SETTINGS), np.random.default_rng(seed)
    sides.begin(prompt_of(7, seed), 8)
    for turn in range(6):
        tree = sides.drafter.draft(9)
        assert_sound(tree, NODES, 9)
        assert_same_tree(tree, sides.fresh().drafter.draft(9))
        path = random_path(tree, rng)
        sides.answer(tree, path, other_token(tree, (0, *path)[-1], seed=turn))
        if turn == 3:
            sides.begin(prompt_of(4, seed), 12)


def test_without_the_section_there_are_none(head: TinyHead, slm: TinySlm) -> None:
    sides = sides_of(head, slm, None)
    sides.begin(prompt_of(9), 8)
    assert not any(SOURCE in source for source in sides.drafter.draft(9).sources)
    assert draft_passes(sides.slm_engine) == [1 + STEPS + 1]
