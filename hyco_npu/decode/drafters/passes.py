"""Passes of the SLM over a growing tree: the best nodes that it has not run, as many as a pass may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyco_npu.decode.drafters.phases import TREE
from hyco_npu.decode.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.drafters.slm import SlmRows, SlmTree

SOURCE = "slm"


@dataclass(frozen=True, eq=False)
class TreePasses:
    """`nodes`: size of the tree that will be cut. `beam`: most nodes of a pass after the first.

    `edge_score` is added to the log-probability of every edge, at most 0: it makes deep nodes rank lower.
    """

    rows: SlmRows
    nodes: int
    beam: int
    clock: Clock
    edge_score: float = 0.0

    def grow(self, grown: SlmTree, nodes: Sequence[int], max_depth: int | None = None) -> None:
        """One pass over `nodes`; their children join the tree where they are no deeper than `max_depth`."""
        candidates = self.rows.expand(grown, nodes)
        tree = grown.tree
        with self.clock.phase(TREE):
            for node, of_node in zip(nodes, candidates, strict=True):
                if max_depth is None or tree.depth(node) < max_depth:
                    tree.add_all(node, [(token, score + self.edge_score) for token, score in of_node], SOURCE)

    def further(
        self,
        grown: SlmTree,
        passes: int,
        max_depth: int | None = None,
        always: Sequence[int] = (),
        beside: Iterable[tuple[SlmTree, Sequence[int]]] = (),
    ) -> None:
        """At most `passes` passes, each over the best nodes that were not run, of those that would be kept by now.

        `always`: nodes that are kept whatever they score. `beside`: nodes of other trees whose rows are wanted too.
        """
        for _ in range(passes):
            with self.clock.phase(TREE):
                best = self.best(grown, max_depth, always)
                self.rows.keep((grown, [ROOT, *best]), *beside)
                new = [node for node in best if self._can_run(grown, node, max_depth)]
            if not new:
                return
            self.grow(grown, sorted(new[: min(self.beam, self.rows.rows_a_pass)]), max_depth)

    def best(self, grown: SlmTree, max_depth: int | None, always: Sequence[int] = ()) -> list[int]:
        """The nodes that the tree would be cut to, from best to worst (GrowingTree.trim)."""
        tree = grown.tree
        ranked = tree.ranked(max_depth)
        first = {*[node for node in always if max_depth is None or tree.depth(node) <= max_depth][: self.nodes]}
        others = [node for node in ranked if node not in first][: self.nodes - len(first)]
        kept = first.union(others)
        return [node for node in ranked if node in kept]

    def _can_run(self, grown: SlmTree, node: int, max_depth: int | None) -> bool:
        """A node without row whose parent has one, and whose children the tree has room for."""
        deep = max_depth is not None and grown.tree.depth(node) >= max_depth
        return not deep and node not in grown.likeliest and grown.tree.parent(node) in grown.rows
