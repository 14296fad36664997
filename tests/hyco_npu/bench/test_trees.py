"""Trees as sets of paths: shares by hand, repeats, and the rounds that are compared."""

from __future__ import annotations

import pytest

from device_runner.measurement import Block, DraftedTree, RoundSample, RunnerInfo
from hyco_npu.bench.errors import BenchError
from hyco_npu.bench.trees import HostTrees, check_trees, share

RUNNER = RunnerInfo("0.1.0", "cpu", "1.32.0", "x86_64-linux", None, None, None, 1)


def tree(*rows: tuple[int, int | None]) -> DraftedTree:
    tokens, parents = zip(*rows, strict=True)
    return DraftedTree(tokens, parents, (0.0,) * len(rows), ("mtp",) * len(rows))


# 5 -> 1 -> 2, 5 -> 3: three nodes
THREE = tree((5, None), (1, 0), (2, 1), (3, 0))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (THREE, 1.0),
        # the same nodes in another order
        (tree((5, None), (3, 0), (1, 0), (2, 2)), 1.0),
        # 1, 3 are common; 2 behind 3 is another node than 2 behind 1: 2 of 4
        (tree((5, None), (1, 0), (3, 0), (2, 2)), 0.5),
        # a part of it: 2 of 3
        (tree((5, None), (1, 0), (2, 1)), 2 / 3),
        (tree((5, None)), 0.0),
        # other roots are other places in the text
        (tree((6, None), (1, 0), (2, 1), (3, 0)), 0.0),
    ],
)
def test_share_of_common_nodes(other: DraftedTree, expected: float) -> None:
    assert share(THREE, other) == share(other, THREE) == pytest.approx(expected)


def test_two_equal_roots_without_nodes_agree() -> None:
    assert share(tree((5, None)), tree((5, None))) == 1.0


def block(*trees: DraftedTree) -> Block:
    rounds = tuple(RoundSample(i, 0, i, 1.0, {}, None, one) for i, one in enumerate(trees))
    return Block("A", RUNNER, (), rounds, False, None, None, None)


TWO = tree((5, None), (1, 0), (2, 1))


def test_each_round_is_compared_once_and_later_passes_with_the_first() -> None:
    """The file has two rounds; a block of five begins it again twice."""
    host = HostTrees("cpu", (THREE, TWO), 2)
    check = check_trees("A", [block(THREE, THREE, THREE, THREE, THREE), block(THREE, THREE)], host, 0.9)
    assert check.shares == (1.0, pytest.approx(2 / 3))
    assert check.repeatable
    assert (check.label, check.reference, check.needed) == ("A", "cpu", 0.9)
    assert not check_trees("A", [block(THREE, TWO, TWO)], host, 0.9).repeatable
    assert not check_trees("A", [block(THREE, TWO), block(THREE, THREE)], host, 0.9).repeatable


def test_rounds_that_the_host_did_not_draft_are_not_compared() -> None:
    host = HostTrees("simulator", (THREE,), 3)
    assert check_trees("A", [block(THREE, TWO, TWO)], host, 0.9).shares == (1.0,)
    assert check_trees("A", [block(TWO)], HostTrees("cpu", (TWO, TWO), 2), 0.9).shares == (1.0,)
    with pytest.raises(BenchError, match="no round of the device can be compared"):
        check_trees("A", [], host, 0.9)
