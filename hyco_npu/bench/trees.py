"""The device's trees against the host's, before any of its times is believed.

Trees are compared as sets of nodes, a node being the tokens on the path to it: rows of equal score may change places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.measurement import TreeCheck
from hyco_npu.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_runner.measurement import Block, DraftedTree

NEEDED = {"cpu": 0.9, "simulator": 0.9, "htp": 0.8}
"""By provider, the lowest share of nodes that a round's two trees must have in common.

The graphs of one engine give equal codes, and the two drafters' candidates differ only where scores are nearer than
their arithmetic: a leaf or two of a tree. A phone's NPU may round some codes otherwise than the simulator does.
"""


@dataclass(frozen=True)
class HostTrees:
    """The host's trees of the first rounds of a file of `rounds` rounds, drafted on `reference` (cpu or simulator)."""

    reference: str
    trees: tuple[DraftedTree, ...]
    rounds: int


def check_trees(label: str, blocks: Sequence[Block], host: HostTrees, needed: float) -> TreeCheck:
    """Compare one pair's trees: the device's first of each round with the host's, its later ones with its first.

    A block goes through the file in order and begins again at its end. Raises BenchError where the device ran none of
    the rounds that the host drafted.
    """
    first: dict[int, DraftedTree] = {}
    repeatable = True
    for one in (one for block in blocks for one in block.rounds):
        before = first.setdefault(one.number % host.rounds, one.tree)
        repeatable = repeatable and (one.tree.token_ids, one.tree.parents) == (before.token_ids, before.parents)
    shares = tuple(share(first[place], tree) for place, tree in enumerate(host.trees) if place in first)
    if not shares:
        raise BenchError(
            f"bundle pair {label}: no round of the device can be compared with the host's; run more rounds"
        )
    return TreeCheck(label, host.reference, shares, needed, repeatable)


def share(one: DraftedTree, other: DraftedTree) -> float:
    """Nodes in both trees over nodes in either; 0 for two roots that differ, 1 for two equal roots without nodes."""
    if one.token_ids[0] != other.token_ids[0]:
        return 0.0
    here, there = _paths(one), _paths(other)
    return len(here & there) / len(here | there) if here | there else 1.0


def _paths(tree: DraftedTree) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append(() if parent is None else (*paths[parent], token))
    return set(paths[1:])
