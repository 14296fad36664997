"""HyCo's round against its tree by the book: the head by transformers step by step, the SLM path by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hyco_npu.decode.tree import DraftTree

from .builders import (
    SLM_KEEP,
    Sides,
    assert_same_tree,
    assert_sound,
    config_of,
    draft_passes,
    head_feeds,
    hidden_at,
    other_token,
    paths_of,
    prefill_passes,
    prompt_of,
    random_path,
)
from .reference import SlowTree, head_chain, head_paths

if TYPE_CHECKING:
    from tests.export.tiny import TinyHead
    from tests.export.tiny_slm import TinySlm

CHILDREN, BEAM, NODES, STEPS, WIDTH, SIBLING_DEPTH = 4, 3, 10, 4, 2, 2
HEAD_ROWS = 1 + STEPS + 2
"""Root, chain, and a sibling at two depths."""


def sides_of(
    head: TinyHead, slm: TinySlm, passes: int = 1, keep_chain: bool = True, children: int = CHILDREN, **changes: Any
) -> Sides:
    mtp = {"steps": STEPS, "width": WIDTH, "sibling_depth": SIBLING_DEPTH}
    section = {"passes": passes, "children": children, "beam": BEAM}
    return Sides(config_of("hybrid", NODES, keep_chain, mtp=mtp, slm=section), head, slm, **changes)


def slow_draft(sides: Sides, head: TinyHead, slm: TinySlm, max_depth: int) -> SlowTree:
    """Chain and siblings, one pass over all of them and the root, further ones over the best new nodes."""
    steps = head_chain(head, sides.text.state(), min(STEPS, max_depth), window=8)
    chain, edges = head_paths(steps, WIDTH, SIBLING_DEPTH)
    assert sides.config.slm is not None
    tree = SlowTree(slm, list(sides.text.tokens), NODES, sides.config.slm.children, BEAM)
    tree.chain = chain if sides.config.tree.keep_chain else ()
    for path, log_p in edges.items():
        tree.add(path, log_p)
    tree.grow([(), *edges], max_depth)
    tree.step(sides.config.slm.passes - 1, max_depth)
    return tree


def assert_drafts(tree: DraftTree, expected: SlowTree, max_depth: int) -> None:
    found, wanted = paths_of(tree), expected.cut(max_depth)
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose([found[path] for path in found], [wanted[path] for path in found], atol=1e-4)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("keep_chain", [True, False])
@pytest.mark.parametrize("length", [1, 6, 13])
def test_a_draft_equals_the_tree_by_the_book(
    head: TinyHead, slm: TinySlm, passes: int, keep_chain: bool, length: int
) -> None:
    sides = sides_of(head, slm, passes, keep_chain)
    sides.begin(prompt_of(length), 8)
    tree = sides.drafter.draft(50)
    expected = slow_draft(sides, head, slm, 50)
    assert_drafts(tree, expected, 50)
    in_tree = [path in paths_of(tree) for path in (expected.chain or [(0,)])]
    assert all(in_tree) or not keep_chain
    assert draft_passes(sides.slm_engine) == [HEAD_ROWS, BEAM][:passes]


@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_no_path_is_longer_than_asked_for(head: TinyHead, slm: TinySlm, max_depth: int) -> None:
    sides = sides_of(head, slm, passes=2)
    sides.begin(prompt_of(9), 8)
    tree = sides.drafter.draft(max_depth)
    assert_sound(tree, NODES, max_depth)
    assert_drafts(tree, slow_draft(sides, head, slm, max_depth), max_depth)
    assert len(head_feeds(sides.mtp_engine)) == min(STEPS, max_depth)


def test_who_drafted_a_node_is_told(head: TinyHead, slm: TinySlm) -> None:
    """With all of its tokens as children, the SLM drafts whatever the head does that is in its vocabulary."""
    sides = sides_of(head, slm, children=len(SLM_KEEP))
    sides.begin(prompt_of(9), 8)
    tree = sides.drafter.draft(9)
    expected = slow_draft(sides, head, slm, 9)
    assert_drafts(tree, expected, 9)
    edges = head_paths(head_chain(head, sides.text.state(), STEPS, window=8), WIDTH, SIBLING_DEPTH)[1]
    of_slm = SlowTree(slm, expected.text, NODES, len(SLM_KEEP))
    of_slm.grow([(), *edges])
    assert set(tree.sources) == {"root", "mtp", "slm", "mtp+slm"}
    for path in paths_of(tree):
        row = 0
        for token in path:
            row = tree.child(row, token) or 0
        names = [name for name, has in (("mtp", path in edges), ("slm", path in of_slm.scores)) if has]
        assert tree.sources[row] == "+".join(names)


@pytest.mark.parametrize(("passes", "window", "seed"), [(1, 64, 0), (2, 64, 1), (1, 10, 2)])
def test_any_history_drafts_like_a_fresh_start(
    head: TinyHead, slm: TinySlm, passes: int, window: int, seed: int
) -> None:
    """Paths through rows that were run and rows that were not; a window that is full and slides; a second turn."""
    sides, rng = sides_of(head, slm, passes, window=window), np.random.default_rng(seed)
    sides.begin(prompt_of(7, seed), 8)
    for turn in range(6):
        tree = sides.drafter.draft(9)
        sides.drafter.while_waiting()
        assert_sound(tree, NODES, 9)
        assert_same_tree(tree, sides.fresh().drafter.draft(9))
        path = random_path(tree, rng)
        sides.answer(tree, path, other_token(tree, (0, *path)[-1], seed=turn))
        if turn == 3:
            sides.answer(sides.drafter.draft(9), (), None if turn % 2 == 0 else 30)
            sides.begin(prompt_of(4, seed), 12)


def test_a_text_that_ends_on_an_accepted_token_goes_on(head: TinyHead, slm: TinySlm) -> None:
    """Its last token has no row at the verifier; a further turn follows it."""
    sides = sides_of(head, slm)
    sides.begin(prompt_of(7), 8)
    tree = sides.drafter.draft(9)
    deepest = max(range(tree.rows), key=lambda row: tree.depths[row])
    sides.answer(tree, tree.path(deepest), None)
    sides.begin(prompt_of(5, seed=9), 21)
    assert_same_tree(sides.drafter.draft(9), sides.fresh().drafter.draft(9))


def test_accepted_tokens_that_were_not_run_are_run_in_front(head: TinyHead, slm: TinySlm) -> None:
    """One more row in the next pass, and no pass of their own; the prefill graph takes what the draft graph cannot."""
    sides = sides_of(head, slm)
    sides.begin(prompt_of(6), 8)
    for place, waiting in enumerate([1, 2, 3]):
        tree = sides.drafter.draft(9)
        sides.answer(tree, (1,), 30)  # chain or sibling: it was run
        for token in range(waiting):
            sides.answer(DraftTree.root_only(sides.text.tokens[-1]), (), 40 + token)
        before = len(prefill_passes(sides.slm_engine))
        assert_same_tree(sides.drafter.draft(9), sides.fresh().drafter.draft(9))
        in_front = waiting if HEAD_ROWS + waiting <= 9 else 0
        assert draft_passes(sides.slm_engine)[-1] == HEAD_ROWS + in_front
        assert len(prefill_passes(sides.slm_engine)) == before + (in_front == 0)
        sides.answer(DraftTree.root_only(sides.text.tokens[-1]), (), 50 + place)


def test_position_and_hidden_state_of_every_step(head: TinyHead, slm: TinySlm) -> None:
    """cases.md row 30: rounds with 0, 2 and 4 accepted tokens; one position a round, the hidden of its last row."""
    sides = sides_of(head, slm)
    sides.begin(prompt_of(7), 8)
    for accepted in (0, 2, 4, 0):
        feeds = head_feeds(sides.mtp_engine)
        feeds.clear()
        tree = sides.drafter.draft(9)
        position = len(sides.text.tokens) - 1
        assert len(feeds) == STEPS
        np.testing.assert_array_equal(feeds[0]["hidden"].ravel(), hidden_at(position - 1))
        for feed in feeds:
            cos = feed["cos_sliding"].ravel()
            # the first frequency is 1 whatever theta is: its angle is the position
            assert cos[0] == np.cos(np.float32(position))
        path = next(tree.path(row) for row in range(tree.rows) if tree.depths[row] == accepted)
        sides.answer(tree, path, other_token(tree, (0, *path)[-1]))
