"""One tree pass of the SLM over a drafted chain: which branches it adds at every node.

A round's rows are the root (the last committed token) and the chain behind it. Each row's logits give the likeliest
children of its token, so one pass branches every node at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from export.engines.htp import why_unavailable
from export.graphs.tree_feeds import RowTree, softcapped
from hyco_npu.decode.bundles import open_slm

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from export.bundle.reader import Bundle

CHILDREN = 4
"""Children a row: 5 rows with 4 each are 20 branches, which leaves a tree of 32 nodes room for the chain."""


@dataclass(frozen=True)
class Child:
    """A token that the SLM puts behind a row, its probability over the kept tokens, and whether the chain has it."""

    token_id: int
    probability: float
    in_chain: bool


@dataclass(frozen=True)
class TreePass:
    """`tokens` are root and chain, `children[i]` the SLM's of row i, likeliest first; `engine` ran the pass."""

    engine: str
    tokens: tuple[int, ...]
    children: tuple[tuple[Child, ...], ...]

    @property
    def added(self) -> int:
        """How many branches the chain did not have."""
        return sum(not child.in_chain for row in self.children for child in row)

    def accepted(self, truth: Sequence[int]) -> tuple[int, int]:
        """Accepted tokens of the chain alone and of the tree, where the verifier goes on with `truth`."""
        chain = self.tokens[1:]
        matched = next((i for i, pair in enumerate(zip(chain, truth, strict=False)) if pair[0] != pair[1]), None)
        matched = min(len(chain), len(truth)) if matched is None else matched
        more = matched < len(truth) and any(c.token_id == truth[matched] for c in self.children[matched])
        return matched, matched + more


def tree_pass(bundle: Bundle, text: Sequence[int], chain: Sequence[int]) -> TreePass:
    """Fill the cache with `text` but for its last token, then run that token and `chain` through the draft graph.

    The pass runs on the HTP simulator where this host has one. Raises BundleError for a bundle without tables.
    """
    simulated = why_unavailable() is None
    model, keep = open_slm(bundle, simulator=simulated)
    session = model.begin()
    session.prefill(text[:-1])
    tokens = (int(text[-1]), *chain)
    logits = softcapped(session.draft(RowTree.chain(len(tokens)), tokens), model.config.final_logit_softcapping)
    children = children_of(logits, keep, chain)
    return TreePass("HTP simulator" if simulated else "CPU (QDQ)", tokens, children)


def children_of(logits: np.ndarray, keep: np.ndarray, chain: Sequence[int]) -> tuple[tuple[Child, ...], ...]:
    """The likeliest CHILDREN of every row of `logits` [rows, kept]; row i is followed by `chain[i]`."""
    probabilities = torch.from_numpy(logits).softmax(-1)
    values, columns = probabilities.topk(min(CHILDREN, len(keep)), dim=-1)
    rows = []
    for row, (of_row, at) in enumerate(zip(values.tolist(), columns.tolist(), strict=True)):
        following = chain[row] if row < len(chain) else None
        ids = [int(keep[column]) for column in at]
        rows.append(tuple(Child(i, p, i == following) for i, p in zip(ids, of_row, strict=True)))
    return tuple(rows)
