"""Rows of the SLM by themselves: which are run where, which stay, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from hyco_npu.decode.clock import Clock
from hyco_npu.decode.drafters.slm import SlmRows
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.scores import SourceScore
from hyco_npu.decode.tree import ROOT

from .builders import DRAFT_ROWS, SLM_TEMPERATURE, draft_passes, prefill_passes, prompt_of, slm_engine, text_of
from .reference import slm_children

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.drafters.parts import SlmEngine
    from hyco_npu.decode.drafters.slm import SlmTree
    from tests.export.tiny_slm import TinySlm

CHILDREN = 5
PATHS = [(), (1,), (2,), (1, 3), (1, 4), (2, 3), (1, 3, 5)]
"""Of tokens; a tree in the order of its nodes."""


def rows_of(engine: SlmEngine) -> SlmRows:
    return SlmRows(engine, CHILDREN, SourceScore(SLM_TEMPERATURE), Clock())


def planted(rows: SlmRows) -> SlmTree:
    """A tree of PATHS: node i is path i."""
    grown = rows.plant()
    for path in PATHS[1:]:
        grown.tree.add(PATHS.index(path[:-1]), path[-1], -0.1, "test")
    return grown


def assert_children(tiny: TinySlm, rows: SlmRows, grown: SlmTree, text: Sequence[int], nodes: Sequence[int]) -> None:
    for node, found in zip(nodes, rows.expand(grown, nodes), strict=True):
        expected = slm_children(tiny, text, PATHS[node], CHILDREN)
        assert [token for token, _ in found] == [token for token, _ in expected]
        np.testing.assert_allclose([p for _, p in found], [p for _, p in expected], atol=1e-4)
        assert grown.likeliest[node] == expected[0][0]


@pytest.mark.parametrize("waiting", [0, 1, 4, 5, 6, 20])
@pytest.mark.parametrize("length", [1, 8, 21])
def test_accepted_tokens_go_in_front_of_one_pass(slm: TinySlm, length: int, waiting: int) -> None:
    """Four nodes and at most five tokens before them fit a pass of nine rows; more are prefilled, all of them."""
    engine = slm_engine(slm)
    rows, text = rows_of(engine), prompt_of(length)
    rows.extend(text)
    for token in prompt_of(waiting, seed=6):
        rows.commit([token], None, ())
        text.append(token)
    prefilled = len(prefill_passes(engine))
    assert_children(slm, rows, planted(rows), text, [0, 1, 2, 4])
    fits = waiting + 4 <= DRAFT_ROWS
    assert draft_passes(engine) == [4 + (waiting if fits else 0)]
    assert len(prefill_passes(engine)) - prefilled == (0 if fits else -(-waiting // 5))


@pytest.mark.parametrize("wanted", [[0, 1, 2, 3, 4], [0, 1, 3], [0]])
def test_later_passes_read_the_rows_that_were_kept(slm: TinySlm, wanted: list[int]) -> None:
    engine = slm_engine(slm)
    rows, text = rows_of(engine), prompt_of(6)
    rows.extend(text)
    rows.commit([9, 11], None, ())
    text += [9, 11]
    grown = planted(rows)
    rows.expand(grown, [0, 1, 2, 3, 4])
    rows.keep((grown, wanted))
    # root and catch-up rows are text by now: the cache has the text, and of the draft what was wanted
    cache = text_of(engine).cache
    assert cache.next_position == len(text)
    assert len(cache.draft_positions) == len(wanted) - 1
    later = [node for node in (5, 6) if node - 3 in wanted]
    assert grown.rows.keys() == {*wanted}
    if later:
        assert_children(slm, rows, grown, text, later)
    missing = [node for node in (5, 6) if node not in later]
    for node in missing:
        with pytest.raises(DecodeError, match=f"node {node} cannot be run: its parent {node - 3} has no row"):
            rows.expand(grown, [node])


@pytest.mark.parametrize("path", [[], [1], [1, 3], [1, 3, 6], [2, 5]])
def test_a_tree_behind_a_guess_reads_the_path_to_it(slm: TinySlm, path: list[int]) -> None:
    """And its rows are the text's if the guess was right."""
    engine = slm_engine(slm)
    rows, text = rows_of(engine), prompt_of(6)
    rows.extend(text)
    grown = planted(rows)
    rows.expand(grown, range(len(PATHS)))
    ahead = rows.plant_behind(grown, (ROOT, *path)[-1], 40)
    for node in PATHS[1:]:
        ahead.tree.add(PATHS.index(node[:-1]), node[-1], -0.1, "test")
    rows.keep((ahead, ()), (grown, [0]))
    behind = [*text, *(PATHS[path[-1]] if path else ()), 40]
    assert_children(slm, rows, ahead, behind, [0, 1, 2])
    rows.commit(behind[len(text) :], grown, path, ahead)
    assert text_of(engine).cache.next_position == len(behind)
    assert text_of(engine).cache.draft_positions == (len(behind), len(behind))
    assert_children(slm, rows, ahead, behind, [3, 5])
    with pytest.raises(DecodeError, match="a draft has no reply yet"):
        rows.plant()


def test_only_as_many_rows_stay_as_a_pass_can_read(slm: TinySlm) -> None:
    """Five beside a graph of four rows, the best first."""
    engine = slm_engine(slm, draft_rows=4)
    rows, text = rows_of(engine), prompt_of(20)
    rows.extend(text)
    grown = planted(rows)
    assert_children(slm, rows, grown, text, [0, 1, 2])
    rows.keep((grown, [0, 2, 1]))
    assert_children(slm, rows, grown, text, [3, 4, 5, 6])
    rows.keep((grown, [0, 2, 5, 1, 4, 3, 6]))
    assert grown.rows.keys() == {0, 2, 5, 1, 4, 3}
    rows.keep((grown, [0, 2, 5]))
    assert grown.rows.keys() == {0, 2, 5}


def test_before_any_text_nothing_can_be_planted(slm: TinySlm) -> None:
    with pytest.raises(DecodeError, match="no text was begun"):
        rows_of(slm_engine(slm)).plant()
