"""SpecEdge's draft against paths run one by one, and drafting ahead: right and wrong guesses."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hyco_npu.decode.drafters.beam import BeamDrafter
from hyco_npu.decode.tree import DraftTree

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
    text_of,
)
from .reference import SlowTree

if TYPE_CHECKING:
    from tests.export.tiny_slm import TinySlm

CHILDREN, BEAM, NODES = 4, 3, 8


def sides_of(slm: TinySlm, passes: int = 3, ahead: int = 0, nodes: int = NODES, **changes: Any) -> Sides:
    beam = changes.pop("beam", BEAM)
    section = {"passes": passes, "children": CHILDREN, "beam": beam, "proactive_passes": ahead}
    return Sides(config_of("beam", nodes=nodes, slm=section), slm=slm, **changes)


def slow(sides: Sides, slm: TinySlm) -> SlowTree:
    return SlowTree(slm, list(sides.text.tokens), sides.config.tree.nodes, CHILDREN, BEAM, math.log(0.9))


def assert_drafts(tree: DraftTree, expected: dict[tuple[int, ...], float]) -> None:
    found = paths_of(tree)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[path] for path in found], [expected[path] for path in found], atol=1e-4)


@pytest.mark.parametrize("passes", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 7, 20])
def test_a_draft_equals_the_search_over_paths(slm: TinySlm, passes: int, length: int) -> None:
    sides = sides_of(slm, passes)
    sides.begin(prompt_of(length), 8)
    reference = slow(sides, slm)
    reference.grow([()])
    reference.step(passes - 1)
    assert_drafts(sides.drafter.draft(50), reference.cut())
    assert len(draft_passes(sides.slm_engine)) == passes


@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_no_path_is_longer_than_asked_for(slm: TinySlm, max_depth: int) -> None:
    sides = sides_of(slm, passes=4)
    sides.begin(prompt_of(9), 8)
    reference = slow(sides, slm)
    reference.grow([()], max_depth)
    reference.step(3, max_depth)
    assert_drafts(sides.drafter.draft(max_depth), reference.cut(max_depth))


@pytest.mark.parametrize(("ahead", "seed"), [(0, 0), (1, 1), (2, 2), (2, 3), (3, 4)])
def test_any_history_drafts_like_a_fresh_start(slm: TinySlm, ahead: int, seed: int) -> None:
    """Paths of any length, bonus tokens that were not guessed; every draft is that of the text as a prompt."""
    sides, rng = sides_of(slm, ahead=ahead), np.random.default_rng(seed)
    sides.begin(prompt_of(6, seed), 8)
    for turn in range(5):
        tree = sides.drafter.draft(9)
        assert_sound(tree, NODES, 9)
        assert_same_tree(tree, sides.fresh().drafter.draft(9))
        sides.drafter.while_waiting()
        path = random_path(tree, rng)
        sides.answer(tree, path, unguessed(sides, tree, path, turn))
        assert text_of(sides.slm_engine).cache.draft_positions == ()
    assert beam_of(sides).hits == 0


def unguessed(sides: Sides, tree: DraftTree, path: tuple[int, ...], seed: int) -> int:
    """A bonus behind a path of the tree that drafting ahead does not guess."""
    guess = guess_of(sides, tree)
    bonuses = [other_token(tree, (0, *path)[-1], seed=100 * seed + again) for again in range(5)]
    return next(bonus for bonus in bonuses if (path, bonus) != guess)


def beam_of(sides: Sides) -> BeamDrafter:
    assert isinstance(sides.drafter, BeamDrafter)
    return sides.drafter


def guess_path(tree: DraftTree) -> tuple[int, ...]:
    """The path to the likeliest leaf."""
    leaves = [row for row in range(tree.rows) if not tree.children(row)]
    return tree.path(max(leaves, key=lambda row: tree.scores[row]))


def guess_of(sides: Sides, tree: DraftTree) -> tuple[tuple[int, ...], int]:
    """What drafting ahead should guess: the likeliest leaf and the likeliest token behind it, by transformers."""
    path = guess_path(tree)
    assert sides.slm is not None
    reference = SlowTree(sides.slm, sides.text.tokens, 1, 1)
    reference.grow([tuple(tree.token_ids[row] for row in path)])
    (found,) = reference.scores
    return path, found[-1]


@pytest.mark.parametrize(("ahead", "seed"), [(2, 0), (2, 1), (3, 2)])
def test_a_right_guess_goes_on_from_the_tree_below_it(slm: TinySlm, ahead: int, seed: int) -> None:
    """Hit after hit, each draft is that of the passes ahead and its own; a miss leaves nothing of them."""
    sides = sides_of(slm, passes=2, ahead=ahead)
    sides.begin(prompt_of(6, seed), 8)
    reference = slow(sides, slm)
    reference.grow([()])
    reference.step(1, 9)
    for hit in range(1, 4):
        tree = sides.drafter.draft(9)
        assert_drafts(tree, reference.cut(9))
        sides.drafter.while_waiting()
        path, bonus = guess_of(sides, tree)
        left = ahead - (tuple(tree.token_ids[row] for row in path) not in reference.ran)
        sides.answer(tree, path, bonus)
        assert beam_of(sides).hits == hit
        reference = slow(sides, slm)
        reference.grow([()])
        reference.step(left - 1)
        reference.step(2, 9)
    tree = sides.drafter.draft(9)
    sides.answer(tree, (), other_token(tree, 0))
    assert_same_tree(sides.drafter.draft(9), sides.fresh().drafter.draft(9))


def test_drafting_ahead_costs_no_row_that_may_be_accepted(slm: TinySlm) -> None:
    """Behind a miss only the accepted tokens that were not run before go in front of the next pass."""
    longest, leaves_run = 0, set()
    for row, seed in product(range(2, NODES + 1, 2), (0, 2)):
        sides = sides_of(slm, ahead=2)
        sides.begin(prompt_of(6, seed), 8)
        reference = slow(sides, slm)
        reference.grow([()])
        reference.step(2)
        tree = sides.drafter.draft(9)
        sides.drafter.while_waiting()
        path = tree.path(row)
        sides.answer(tree, path, unguessed(sides, tree, path, row))
        before = len(draft_passes(sides.slm_engine))
        sides.drafter.draft(9)
        tokens = [tuple(tree.token_ids[node] for node in path[:end]) for end in range(1, len(path) + 1)]
        leaf = guess_path(tree)
        leaves_run.add(tuple(tree.token_ids[node] for node in leaf) in reference.ran)
        waiting = [end for end, done in zip(path, tokens, strict=True) if done not in reference.ran and end != leaf[-1]]
        assert draft_passes(sides.slm_engine)[before] == 1 + len(waiting)
        longest = max(longest, len(path) - len(waiting))
    assert longest > 1
    assert leaves_run == {True, False}


@pytest.mark.parametrize("wrong", ["leaf", "bonus", "no bonus"])
def test_half_a_guess_is_a_miss(slm: TinySlm, wrong: str) -> None:
    sides = sides_of(slm, ahead=2)
    sides.begin(prompt_of(6), 8)
    tree = sides.drafter.draft(9)
    sides.drafter.while_waiting()
    path, bonus = guess_of(sides, tree)
    assert beam_of(sides).guesses == 1
    if wrong == "leaf":
        other = next(row for row in range(1, tree.rows) if row != path[-1] and tree.child(row, bonus) is None)
        sides.answer(tree, tree.path(other), bonus)
    elif wrong == "bonus":
        sides.answer(tree, path, (bonus + 1) % 64)
    else:
        sides.answer(tree, path, None)
    assert beam_of(sides).hits == 0
    assert text_of(sides.slm_engine).cache.draft_positions == ()
    assert_same_tree(sides.drafter.draft(9), sides.fresh().drafter.draft(9))


@pytest.mark.parametrize("after", ["turn", "undrafted"])
def test_a_tree_drafted_ahead_may_go_unused(slm: TinySlm, after: str) -> None:
    """A further turn behind a right guess, or a root that is answered without a draft."""
    sides = sides_of(slm, ahead=2)
    sides.begin(prompt_of(6), 8)
    tree = sides.drafter.draft(9)
    sides.drafter.while_waiting()
    sides.answer(tree, *guess_of(sides, tree))
    assert beam_of(sides).hits == 1
    if after == "turn":
        sides.begin(prompt_of(7, seed=5), 11)
    else:
        sides.answer(DraftTree.root_only(sides.text.tokens[-1]), (), 17)
    assert_same_tree(sides.drafter.draft(9), sides.fresh().drafter.draft(9))


@pytest.mark.parametrize("seed", range(2))
def test_a_tree_larger_than_the_graph(slm: TinySlm, seed: int) -> None:
    """A draft graph of 4 rows, beside which sliding layers read 5 drafted ones, grows trees of 14 nodes."""
    sides = sides_of(slm, passes=4, ahead=3, nodes=14, beam=9, draft_rows=4)
    rng = np.random.default_rng(seed)
    sides.begin(prompt_of(12, seed), 8)
    for turn in range(5):
        tree = sides.drafter.draft(9)
        assert_sound(tree, 14, 9)
        assert_same_tree(tree, sides.fresh().drafter.draft(9))
        sides.drafter.while_waiting()
        path = random_path(tree, rng)
        sides.answer(tree, path, unguessed(sides, tree, path, turn))


def test_drafting_ahead_before_any_draft_does_nothing(slm: TinySlm) -> None:
    sides = sides_of(slm, ahead=2)
    sides.begin(prompt_of(6), 8)
    sides.drafter.while_waiting()
    assert draft_passes(sides.slm_engine) == []
