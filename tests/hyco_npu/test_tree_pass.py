"""Branches of a tree pass in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from hyco_npu.tree_pass import Child, TreePass, children_of

KEEP = np.array([3, 5, 8, 13, 21, 34])


def test_children_are_the_likeliest_kept_tokens_with_their_probabilities() -> None:
    probabilities = np.array([[0.1, 0.4, 0.05, 0.25, 0.15, 0.05], [0.5, 0.1, 0.2, 0.08, 0.07, 0.05]])
    rows = children_of(np.log(probabilities).astype(np.float32), KEEP, [13])
    assert [[child.token_id for child in row] for row in rows] == [[5, 13, 21, 3], [3, 8, 5, 13]]
    assert [child.probability for child in rows[0]] == pytest.approx([0.4, 0.25, 0.15, 0.1], abs=1e-6)
    # Only what follows a row in the chain is the chain's; behind the last row nothing does.
    assert [[child.in_chain for child in row] for row in rows] == [[False, True, False, False], [False] * 4]


def test_fewer_kept_tokens_than_children() -> None:
    rows = children_of(np.zeros((1, 2), np.float32), np.array([4, 9]), [])
    assert sorted(child.token_id for child in rows[0]) == [4, 9]


def child(token_id: int, in_chain: bool = False) -> Child:
    return Child(token_id, 0.5, in_chain)


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ([11, 12, 13], (2, 3)),  # the chain is right to its end, the SLM knows what follows
        ([11, 12, 14], (2, 2)),
        ([11, 99, 13], (1, 2)),  # the chain is cut behind its first token, where the SLM has a branch
        ([11, 98, 13], (1, 1)),
        ([20, 12], (0, 1)),
        ([11], (1, 1)),  # the text ends there: nothing can follow
        ([], (0, 0)),
    ],
)
def test_accepted_counts_the_chain_and_one_branch_behind_it(truth: list[int], expected: tuple[int, int]) -> None:
    rows = ((child(11, True), child(20)), (child(12, True), child(99)), (child(13),))
    tree = TreePass("CPU (QDQ)", (10, 11, 12), rows)
    assert tree.accepted(truth) == expected
    assert tree.added == 3
