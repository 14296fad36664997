"""The native tree against hyco_npu.decode.tree: random trees with merges and with equal scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hyco_npu.decode.tree import GrowingTree

from .conftest import RefusedError

if TYPE_CHECKING:
    from .conftest import Native

pytestmark = pytest.mark.native
SOURCES = ("mtp", "slm", "guess")


def random_adds(rng: np.random.Generator, count: int) -> list[tuple[int, int, float, str]]:
    """Few different tokens and log-probabilities, so that nodes are merged and scores tie."""
    tree, adds = GrowingTree(7), []
    for _ in range(count):
        add = (
            int(rng.integers(len(tree))),
            int(rng.integers(6)),
            -float(rng.integers(5)) / 4,
            str(rng.choice(SOURCES)),
        )
        tree.add(*add)
        adds.append(add)
    return adds


@pytest.mark.parametrize("seed", range(6))
def test_ranks_and_cuts_as_python_does(native: Native, seed: int) -> None:
    rng = np.random.default_rng(seed)
    adds = random_adds(rng, 120)
    tree = GrowingTree(7)
    for add in adds:
        tree.add(*add)
    trims: list[dict[str, Any]] = []
    for _ in range(8):
        always = [int(node) for node in rng.integers(1, len(tree), rng.integers(0, 4))]
        trims.append({"nodes": int(rng.integers(1, 40)), "max_depth": int(rng.integers(1, 8)), "always": always})
    found = native.probe("tree", root=7, adds=adds, trims=trims)
    for trim, result in zip(trims, found, strict=True):
        wanted = tree.trim(**trim)
        assert result["ranked"] == tree.ranked(trim["max_depth"])
        assert result["nodes"] == list(wanted.nodes)
        assert result["token_ids"] == list(wanted.tree.token_ids)
        assert result["parents"] == list(wanted.tree.parents)
        assert result["scores"] == list(wanted.tree.scores)
        assert result["sources"] == list(wanted.tree.sources)


@pytest.mark.parametrize("log_probability", [0.5, 1e-9])
def test_a_child_above_its_parent_is_refused(native: Native, log_probability: float) -> None:
    with pytest.raises(RefusedError, match="it is 0 at most"):
        native.probe("tree", root=7, adds=[(0, 1, log_probability, "slm")], trims=[])
