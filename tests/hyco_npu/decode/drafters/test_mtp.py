"""The head's window and chain: rows that replies bring, and what transformers' head makes of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from calibration.states import record_states
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.config import MtpSettings
from hyco_npu.decode.drafters.head_window import HeadWindow
from hyco_npu.decode.drafters.mtp import MtpCandidates
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.protocols import HeadUpdate
from hyco_npu.decode.scores import SourceScore
from hyco_npu.decode.tree import DraftTree, GrowingTree
from tests.export.mtp.conftest import tiny_verifier

from .builders import (
    HEAD_TEMPERATURE,
    Sides,
    Text,
    assert_same_tree,
    config_of,
    head_engine,
    head_feeds,
    other_token,
    paths_of,
    prompt_of,
    random_path,
)
from .reference import head_chain, head_paths

if TYPE_CHECKING:
    from calibration.states import HeadState
    from tests.export.tiny import TinyHead

CUTS = [0, 5, 6, 9, 10, 15, 30, 31, 33, 40, 59, 62, 70, 71, 90, 124, 131, 140, 188, 199]
"""Rows come in pieces of these ends: a prompt, and rounds with 0 to 47 accepted tokens."""


def update_of(state: HeadState, new: int) -> HeadUpdate:
    keys, values = ({kind: a[:, -new:] for kind, a in rows.items()} for rows in (state.keys, state.values))
    return HeadUpdate(state.hidden, state.embedding, keys, values)


@pytest.mark.parametrize("window", [1, 3, 8, 40, None])
def test_the_window_is_a_slice_of_the_recorded_states(window: int | None) -> None:
    """cases.md row 29: the last rows of the text, none of any draft."""
    text = [int(token) for token in np.random.default_rng(2).integers(100, size=CUTS[-1] + 1)]
    verifier = tiny_verifier()
    whole = list(record_states(verifier, [text], [CUTS[1:]], window=1000))
    cut = list(record_states(verifier, [text], [CUTS[1:]], window=1000 if window is None else window))
    rows, kept = HeadWindow(window), []
    for (start, stop), state, expected in zip(pairwise(CUTS), whole, cut, strict=True):
        rows.extend(update_of(state, stop - start))
        kept.append((rows.state(text[stop], stop), expected))
    # also the earlier ones: they are views that must not change
    for found, expected in kept:
        assert (found.token_id, found.position) == (expected.token_id, expected.position)
        np.testing.assert_array_equal(found.embedding, expected.embedding)
        np.testing.assert_array_equal(found.hidden, expected.hidden)
        for ours, theirs in ((found.keys, expected.keys), (found.values, expected.values)):
            assert ours.keys() == theirs.keys() == {"sliding", "full"}
            for kind, array in theirs.items():
                np.testing.assert_array_equal(ours[kind], array)


def test_what_the_window_refuses() -> None:
    with pytest.raises(DecodeError, match="a window of 0 rows"):
        HeadWindow(0)
    with pytest.raises(DecodeError, match="no state for the MTP head"):
        HeadWindow(4).extend(None)
    with pytest.raises(DecodeError, match="before the first reply"):
        HeadWindow(4).state(3, 1)
    one, two = np.zeros((1, 1, 4), np.float32), np.zeros((1, 2, 4), np.float32)
    with pytest.raises(DecodeError, match=r"\[1, 2\] new rows"):
        HeadWindow(4).extend(HeadUpdate(one, one, {"sliding": one, "full": two}, {"sliding": one, "full": two}))


@pytest.mark.parametrize("window", [5, 8, None])
@pytest.mark.parametrize(("width", "depth"), [(1, 0), (2, 2), (3, 1)])
def test_chain_and_siblings_are_those_of_transformers(
    head: TinyHead, window: int | None, width: int, depth: int
) -> None:
    """Behind 1 to 80 rows; a head without a window gets feeds of a power of two."""
    engine, text = head_engine(head, window), Text(head)
    settings = MtpSettings(steps=4, width=width, sibling_depth=depth)
    candidates = MtpCandidates(engine, settings, SourceScore(HEAD_TEMPERATURE), Clock())
    for more in (2, 4, 8, 57, 9):
        added = prompt_of(more, seed=more)
        text.tokens += added
        candidates.extend(added, text.update())
        tree = GrowingTree(text.tokens[-1])
        nodes = candidates.add_to(tree, max_depth=3)
        chain, edges = head_paths(head_chain(head, text.state(), 3, window), width, depth)
        found = paths_of(tree.trim(100, 100).tree)
        assert found.keys() == edges.keys()
        scores = {path: sum(edges[path[:end]] for end in range(1, len(path) + 1)) for path in edges}
        np.testing.assert_allclose([found[path] for path in scores], list(scores.values()), atol=1e-4)
        assert [tree.token(node) for node in nodes.chain] == list(chain[-1])
        assert [tree.depth(node) for node in nodes.siblings] == [
            at for at in range(1, depth + 1) for _ in range(width - 1)
        ]
        rows = len(text.tokens) - 1
        slots = head_feeds(engine)[-1]["mask_full"].shape[-1]
        assert slots == (window or (64 if rows <= 64 else 128))


@pytest.mark.parametrize("window", [8, None])
def test_any_history_drafts_like_a_fresh_start(head: TinyHead, window: int | None) -> None:
    mtp = {"steps": 4, "width": 2, "sibling_depth": 1}
    sides, rng = Sides(config_of("chain", nodes=6, mtp=mtp), head), np.random.default_rng(4)
    sides.begin(prompt_of(5), 8)
    for turn in range(8):
        tree = sides.drafter.draft(7)
        sides.drafter.while_waiting()
        assert_same_tree(tree, sides.fresh().drafter.draft(7))
        path = random_path(tree, rng)
        sides.answer(tree, path, other_token(tree, (0, *path)[-1], seed=turn))
    sides.answer(DraftTree.root_only(sides.text.tokens[-1]), (), 9)
    sides.begin(prompt_of(3), 4)
    assert_same_tree(sides.drafter.draft(7), sides.fresh().drafter.draft(7))


@pytest.mark.parametrize(("nodes", "keep_chain", "depths"), [(3, True, [1, 2, 3]), (3, False, [1, 1, 1])])
def test_the_chain_is_kept_or_ranked_like_others(
    head: TinyHead, nodes: int, keep_chain: bool, depths: list[int]
) -> None:
    """At a high temperature all tokens are as likely, and every one at depth 1 ranks above the chain's second."""
    sections: dict[str, Any] = {"mtp": {"steps": 3, "width": 20, "sibling_depth": 1}}
    sides = Sides(config_of("chain", nodes, keep_chain, scores={"mtp": {"temperature": 100.0}}, **sections), head)
    sides.begin(prompt_of(5), 8)
    assert sorted(sides.drafter.draft(9).depths[1:]) == depths
