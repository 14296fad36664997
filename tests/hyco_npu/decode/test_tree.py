"""Draft trees against brute force: shape by walking parents, the cut by trying every ancestor-closed set."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.tree import DraftTree, GrowingTree

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def grown(rng: np.random.Generator, adds: int, edges: Sequence[float] | None = None) -> GrowingTree:
    """A tree by chance, some of its nodes merged; edges from `edges` make ties."""
    tree = GrowingTree(0)
    for _ in range(adds):
        edge = -float(rng.exponential()) if edges is None else float(rng.choice(edges))
        tree.add(int(rng.integers(len(tree))), int(rng.integers(5)), edge, str(rng.choice(["mtp", "slm"])))
    return tree


def ancestors(tree: GrowingTree, node: int) -> set[int]:
    """The node and what stands above it, without the root."""
    found: set[int] = set()
    while node != 0:
        found.add(node)
        node = tree.parent(node)  # type: ignore[assignment]
    return found


def closed_sets(tree: GrowingTree, size: int, max_depth: int, always: Collection[int] = ()) -> list[tuple[int, ...]]:
    """Every set of `size` nodes that holds `always` and each member's ancestors."""
    nodes = [node for node in range(1, len(tree)) if len(ancestors(tree, node)) <= max_depth]
    sets = [s for s in itertools.combinations(nodes, size) if all(ancestors(tree, n) <= set(s) for n in s)]
    return [s for s in sets if set(always) <= set(s)]


# --- a finished tree


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), adds=st.integers(0, 25))
def test_the_shape_of_a_tree_is_what_its_parents_say(seed: int, adds: int) -> None:
    tree = grown(np.random.default_rng(seed), adds).trim(adds, adds).tree
    assert (tree.rows, tree.nodes) == (len(tree.token_ids), len(tree.token_ids) - 1)
    for row in range(tree.rows):
        walk, at = [], row
        while tree.parents[at] is not None:
            walk.insert(0, at)
            at = tree.parents[at]
        assert tree.path(row) == tuple(walk)
        assert tree.depths[row] == len(walk)
        assert tree.children(row) == tuple(r for r in range(tree.rows) if tree.parents[r] == row)
        for token in range(6):
            found = [r for r in range(1, tree.rows) if tree.parents[r] == row and tree.token_ids[r] == token]
            assert tree.child(row, token) == (found[0] if found else None)
    assert tree.row_tree.parents == tree.parents
    assert tree.row_tree.depths().tolist() == list(tree.depths)


def test_a_chain_and_a_root_alone() -> None:
    chain = DraftTree.chain([9, 5, 6, 5], "ngram")
    assert (chain.token_ids, chain.parents) == ((9, 5, 6, 5), (None, 0, 1, 2))
    assert chain.sources == ("root", "ngram", "ngram", "ngram")
    assert DraftTree.chain([9], "ngram") == DraftTree.root_only(9)
    assert (DraftTree.root_only(9).rows, DraftTree.root_only(9).nodes, DraftTree.root_only(9).path(0)) == (1, 0, ())


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((), (), "as many tokens as parents"),
        ((1, 2), (None,), "as many tokens as parents"),
        ((1, 2), (None, None), "row 1 of a draft tree follows row None"),
        ((1, 2), (0, 0), "row 0 of a draft tree follows row 0"),
        ((1, 2), (None, 1), "row 1 of a draft tree follows row 1"),
        ((1, 2, 3), (None, 2, 0), "row 1 of a draft tree follows row 2"),
        ((1, 2), (None, -1), "row 1 of a draft tree follows row -1"),
        ((1, 5, 5, 7), (None, 0, 0, 0), "siblings of a draft tree have the same token"),
    ],
)
def test_rows_that_are_no_tree_are_refused(
    tokens: tuple[int, ...], parents: tuple[int | None, ...], message: str
) -> None:
    with pytest.raises(DecodeError, match=message):
        DraftTree(tokens, parents, (0.0,) * len(tokens), ("mtp",) * len(tokens))


@pytest.mark.parametrize("changed", ["scores", "sources"])
def test_every_row_has_a_score_and_a_source(changed: str) -> None:
    values = {"scores": (0.0, 0.0), "sources": ("root", "mtp"), changed: ()}
    with pytest.raises(DecodeError):
        DraftTree((1, 2), (None, 0), **values)  # type: ignore[arg-type]


def test_the_same_token_may_stand_behind_different_parents() -> None:
    tree = DraftTree((5, 5, 5, 5), (None, 0, 1, 2), (0.0,) * 4, ("root", "mtp", "mtp", "mtp"))
    assert [tree.child(row, 5) for row in range(4)] == [1, 2, 3, None]


# --- a growing one


def test_equal_siblings_are_merged_and_the_higher_probability_counts() -> None:
    tree = GrowingTree(9)
    first = tree.add(0, 5, -2.0, "mtp")
    assert tree.add_all(0, [(5, -1.0), (5, -3.0), (7, -0.5)], "slm") == [first, first, 2]
    assert (len(tree), tree.find(0, 5), tree.find(0, 6), tree.find(first, 5)) == (3, first, None, None)
    # case [5, 5, 7]: two rows, not three
    cut = tree.trim(9, 9)
    assert cut.tree == DraftTree((9, 5, 7), (None, 0, 0), (0.0, -1.0, -0.5), ("root", "mtp+slm", "slm"))


def test_a_merge_lifts_what_stands_behind_it() -> None:
    tree = GrowingTree(9)
    parent = tree.add(0, 5, -2.0, "mtp")
    child = tree.add(parent, 6, -0.5, "mtp")
    assert tree.scores() == [0.0, -2.0, -2.5]
    tree.add(0, 5, -0.25, "slm")
    assert tree.scores() == [0.0, -0.25, -0.75]
    assert (tree.token(child), tree.parent(child), tree.depth(child), tree.parent(0)) == (6, parent, 2, None)


@pytest.mark.parametrize("value", [1e-9, 0.5, math.inf, math.nan])
def test_a_log_probability_above_0_is_refused(value: float) -> None:
    tree = GrowingTree(9)
    with pytest.raises(DecodeError, match="slm gives token 5 the log-probability"):
        tree.add(0, 5, value, "slm")
    assert len(tree) == 1


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), adds=st.integers(0, 12), nodes=st.integers(0, 9), max_depth=st.integers(0, 5))
def test_the_cut_is_the_best_ancestor_closed_set(seed: int, adds: int, nodes: int, max_depth: int) -> None:
    rng = np.random.default_rng(seed)
    tree = grown(rng, adds, None if seed % 2 else [0.0, -1.0, -2.0])
    cut, scores = tree.trim(nodes, max_depth), tree.scores()
    kept = cut.nodes[1:]
    reachable = [n for n in range(1, len(tree)) if len(ancestors(tree, n)) <= max_depth]
    assert len(kept) == min(nodes, len(reachable))
    sets = closed_sets(tree, len(kept), max_depth)
    assert kept in sets
    # best in the sum of log-probabilities and in the expected number of accepted tokens
    for value in (lambda n: scores[n], lambda n: math.exp(scores[n])):
        assert sum(map(value, kept)) == pytest.approx(max(sum(map(value, s)) for s in sets))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), adds=st.integers(1, 11), nodes=st.integers(1, 8), max_depth=st.integers(1, 5))
def test_what_is_always_kept_is_kept_with_its_ancestors(seed: int, adds: int, nodes: int, max_depth: int) -> None:
    rng = np.random.default_rng(seed)
    tree = grown(rng, adds)
    within = [n for n in range(1, len(tree)) if tree.depth(n) <= max_depth]
    always = {int(node) for node in rng.choice(within, min(2, len(within)), replace=False)}
    cut, scores = tree.trim(nodes, max_depth, always), tree.scores()
    kept = cut.nodes[1:]
    assert kept in closed_sets(tree, len(kept), max_depth)
    assert len(kept) == min(nodes, len(within))
    needed = set().union(*(ancestors(tree, node) for node in always))
    if len(needed) <= nodes:
        sets = closed_sets(tree, len(kept), max_depth, needed)
        assert kept in sets
        assert sum(scores[n] for n in kept) == pytest.approx(max(sum(scores[n] for n in s) for s in sets))
    else:
        assert set(kept) <= needed


def test_a_chain_that_must_stay_outlives_better_branches() -> None:
    tree, chain, parent = GrowingTree(0), [], 0
    for token in (1, 2, 3, 4):
        parent = tree.add(parent, token, -5.0, "mtp")
        chain.append(parent)
    tree.add_all(0, [(5, -1.0), (6, -1.1), (7, -1.2)], "slm")
    assert set(tree.trim(5, 9, chain).tree.token_ids) == {0, 1, 2, 3, 4, 5}
    assert set(tree.trim(5, 9).tree.token_ids) == {0, 1, 2, 5, 6, 7}
    assert set(tree.trim(5, 2, chain).tree.token_ids) == {0, 1, 2, 5, 6, 7}
    assert tree.trim(2, 9, chain).tree.token_ids == (0, 1, 2)
    assert tree.trim(5, 9, chain[-1:]) == tree.trim(5, 9, chain)


def test_ties_go_to_the_ancestor_then_to_the_older_node() -> None:
    tree = GrowingTree(0)
    parent = tree.add(0, 1, -1.0, "mtp")
    child = tree.add(parent, 2, 0.0, "mtp")
    late = tree.add(0, 3, -1.0, "slm")
    later = tree.add(0, 4, -1.0, "slm")
    assert tree.ranked() == [parent, late, later, child]
    assert tree.ranked(max_depth=1) == [parent, late, later]
    assert tree.trim(1, 9).nodes == (0, parent)
    assert tree.trim(2, 9).nodes == (0, parent, late)
    minus_infinity = GrowingTree(0)
    for token in range(3):
        minus_infinity.add(token, token, -math.inf, "slm")
    assert minus_infinity.ranked() == [1, 2, 3]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), adds=st.integers(0, 25), nodes=st.integers(0, 25))
def test_rows_of_a_cut_are_the_nodes_they_came_from(seed: int, adds: int, nodes: int) -> None:
    tree = grown(np.random.default_rng(seed), adds)
    cut, scores = tree.trim(nodes, 25), tree.scores()
    assert cut.nodes[0] == 0
    for row, node in enumerate(cut.nodes):
        assert cut.tree.token_ids[row] == tree.token(node)
        assert cut.tree.scores[row] == scores[node]
        parent = cut.tree.parents[row]
        assert (None if parent is None else cut.nodes[parent]) == tree.parent(node)


@pytest.mark.parametrize(
    ("token_ids", "rows"),
    [((), ()), ((7,), (1,)), ((7, 5), (1, 3)), ((8, 5, 1), (2, 4)), ((5,), ()), ((7, 6, 5), (1,))],
)
def test_rows_along_a_text(token_ids: tuple[int, ...], rows: tuple[int, ...]) -> None:
    """3 -> 7 -> 5 and 3 -> 8 -> 5."""
    tree = DraftTree((3, 7, 8, 5, 5), (None, 0, 0, 1, 2), (0.0,) * 5, ("root", *["mtp"] * 4))
    assert tree.along(token_ids) == rows
