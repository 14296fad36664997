"""A text on the real quantised graphs: what drafting leaves in the 8-bit caches, and prefill in pieces of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from export.graphs.tree_feeds import RowTree

from .builders import text
from .conftest import PREFILL_ROWS, ROWS, WINDOW, Quantized, Tiny

if TYPE_CHECKING:
    from collections.abc import Callable

    from export.slm.runner import SlmModel, SlmText
    from export.slm.weights import TwoBit

TWO_BRANCHES = RowTree((None, 0, 0, 1, 2, 3, 4))
"""0 -> 1 -> 3 -> 5 and 0 -> 2 -> 4 -> 6."""
PATHS = [[], [0], [0, 1, 3, 5], [0, 2], [0, 2, 4, 6]]


@pytest.fixture
def model(tiny: Tiny, quantized: Callable[[TwoBit], Quantized]) -> SlmModel:
    return quantized("int4").model(tiny)


def assert_same_codes(ours: SlmText, theirs: SlmText) -> None:
    assert ours.cache.positions == theirs.cache.positions
    first, second = ours.cache.view().caches, theirs.cache.view().caches
    assert first.keys() == second.keys() == {0, 1, 2}
    for owner, rows in first.items():
        assert rows.keys.dtype == rows.values.dtype == np.int8
        assert rows.keys.tobytes() == second[owner].keys.tobytes()
        assert rows.values.tobytes() == second[owner].values.tobytes()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seed", range(3))
def test_accepting_by_gather_equals_never_having_drafted(model: SlmModel, path: list[int], seed: int) -> None:
    """The accepted path alone, as one chain through the draft graph, gives the same codes, bit for bit."""
    prompt, tokens = text(11, seed), text(7, seed + 50)
    drafted, plain = model.begin(), model.begin()
    for session in (drafted, plain):
        session.prefill(prompt)
    drafted.draft(TWO_BRANCHES, tokens)
    drafted.cache.accept(path)
    if path:
        plain.draft(RowTree.chain(len(path)), [tokens[row] for row in path])
        plain.cache.accept(range(len(path)))
    assert any(rows.keys.any() for rows in plain.cache.view().caches.values())
    assert_same_codes(drafted, plain)


def test_rounds_one_after_the_other(model: SlmModel) -> None:
    """Also where the window has slid, and where a round is thrown away whole."""
    drafted, plain = model.begin(), model.begin()
    for session in (drafted, plain):
        session.prefill(text(WINDOW - 4))
    for turn, path in enumerate(PATHS):
        tokens = text(7, seed=turn + 70)
        drafted.draft(TWO_BRANCHES, tokens)
        drafted.cache.accept(path)
        if path:
            plain.draft(RowTree.chain(len(path)), [tokens[row] for row in path])
            plain.cache.accept(range(len(path)))
    assert drafted.cache.next_position > WINDOW
    assert_same_codes(drafted, plain)


@pytest.mark.parametrize("length", [1, PREFILL_ROWS, 13, WINDOW + 3])
def test_prefill_in_chunks_equals_one_by_one(model: SlmModel, length: int) -> None:
    """The codes differ by one step at most, and hardly ever: sums run in another order."""
    whole, single = model.begin(), model.begin()
    whole.prefill(text(length))
    for token in text(length):
        single.prefill([token])
    assert whole.cache.positions == single.cache.positions == range(max(0, length - WINDOW), length)
    for ours, theirs in zip(whole.cache.view().caches.values(), single.cache.view().caches.values(), strict=True):
        for one, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            difference = np.abs(one.astype(int) - other)
            assert difference.max() <= 1
            assert difference.mean() <= 0.002


def test_the_draft_graph_goes_on_where_the_prefill_graph_ended(model: SlmModel) -> None:
    """A token that the prefill graph read is the token that the draft graph would have read."""
    prefilled, drafted = model.begin(), model.begin()
    prefilled.prefill(text(ROWS))
    drafted.draft(RowTree.chain(ROWS), text(ROWS))
    drafted.cache.accept(range(ROWS))
    tree = RowTree((None, 0, 0))
    first, second = (session.draft(tree, [1, 2, 3]) for session in (prefilled, drafted))
    np.testing.assert_allclose(first, second, atol=0.02 * np.abs(first).max())
