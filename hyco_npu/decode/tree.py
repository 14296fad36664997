"""The draft tree: what the device proposes in a round, and what the server verifies in one forward pass.

Row 0 is the root, the last committed token, whose keys and values nobody has yet. Every other row is a draft token
behind its parent. A tree knows neither models nor acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from export.graphs.tree_feeds import RowTree
from hyco_npu.decode.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

ROOT = 0
ROOT_SOURCE = "root"


@dataclass(frozen=True)
class DraftTree:
    """Rows with parents first: token, parent row (None for the root), cumulative log-probability, source.

    `sources` names who drafted a row, joined by "+" where several did ("mtp", "slm", "mtp+slm").
    Raises DecodeError for rows that are no tree or siblings with one token.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int | None, ...]
    scores: tuple[float, ...]
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.parents) == len(self.scores) == len(self.sources) > 0:
            raise DecodeError(f"a draft tree needs as many tokens as parents, got {self.token_ids} and {self.parents}")
        for row, parent in enumerate(self.parents):
            if (parent is None) != (row == ROOT) or (parent is not None and not 0 <= parent < row):
                raise DecodeError(
                    f"row {row} of a draft tree follows row {parent}; all but row 0 follow an earlier one"
                )
        if len(self._places) != self.nodes:
            raise DecodeError(f"siblings of a draft tree have the same token: {self.token_ids} behind {self.parents}")

    @classmethod
    def root_only(cls, token_id: int) -> DraftTree:
        """Nothing drafted: one row."""
        return cls((token_id,), (None,), (0.0,), (ROOT_SOURCE,))

    @classmethod
    def chain(cls, token_ids: Sequence[int], source: str) -> DraftTree:
        """The root and tokens each behind the one before; scores are 0."""
        rows = len(token_ids)
        parents = (None, *range(rows - 1))
        return cls(tuple(token_ids), parents, (0.0,) * rows, (ROOT_SOURCE, *[source] * (rows - 1)))

    @property
    def rows(self) -> int:
        """Rows that the verifier runs, the root among them."""
        return len(self.token_ids)

    @property
    def nodes(self) -> int:
        """Draft tokens."""
        return len(self.token_ids) - 1

    @cached_property
    def row_tree(self) -> RowTree:
        """The same rows as masks and positions are made from."""
        return RowTree(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Number of draft tokens on the path to each row, itself counted; 0 for the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent is None else depths[parent] + 1)
        return tuple(depths)

    def child(self, row: int, token_id: int) -> int | None:
        """The row behind `row` that holds this token."""
        return self._places.get((row, token_id))

    def children(self, row: int) -> tuple[int, ...]:
        """The rows behind `row`."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == row)

    def path(self, row: int) -> tuple[int, ...]:
        """The rows from the root (left out) to `row`."""
        rows: list[int] = []
        parent: int | None = row
        while parent:
            rows.append(parent)
            parent = self.parents[parent]
        return tuple(reversed(rows))

    def along(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        """The rows that hold these tokens one behind the other from the root down, as far as the tree has them."""
        rows: list[int] = []
        for token in token_ids:
            child = self.child(rows[-1] if rows else ROOT, token)
            if child is None:
                break
            rows.append(child)
        return tuple(rows)

    @cached_property
    def _places(self) -> dict[tuple[int, int], int]:
        return {(parent, self.token_ids[row]): row for row, parent in enumerate(self.parents) if parent is not None}


@dataclass(frozen=True)
class Trimmed:
    """A tree cut out of a growing one; row i is its node `nodes[i]`."""

    tree: DraftTree
    nodes: tuple[int, ...]


class GrowingTree:
    """A tree under construction. Node 0 is the root; `add` gives a node behind another, or finds it there.

    A node's edge has a log-probability from each source that drafted it; the highest counts. Its score is the sum over
    its path, so a child never ranks above its parent.
    """

    def __init__(self, root_token: int) -> None:
        self._tokens = [root_token]
        self._parents: list[int | None] = [None]
        self._depths = [0]
        self._edges = [0.0]
        self._sources: list[set[str]] = [{ROOT_SOURCE}]
        self._places: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def token(self, node: int) -> int:
        """Token of a node."""
        return self._tokens[node]

    def parent(self, node: int) -> int | None:
        """Its parent; None for the root."""
        return self._parents[node]

    def depth(self, node: int) -> int:
        """Draft tokens on the path to it, itself counted."""
        return self._depths[node]

    def find(self, parent: int, token_id: int) -> int | None:
        """The node with this token behind `parent`."""
        return self._places.get((parent, token_id))

    def add(self, parent: int, token_id: int, log_probability: float, source: str) -> int:
        """The node for `token_id` behind `parent`, new or merged with the one that is there.

        Raises DecodeError for a log-probability that is NaN or above 0: it would lift a child above its parent.
        """
        if not log_probability <= 0:
            raise DecodeError(f"{source} gives token {token_id} the log-probability {log_probability}; it is 0 at most")
        node = self._places.get((parent, token_id))
        if node is None:
            node = len(self._tokens)
            self._places[parent, token_id] = node
            self._tokens.append(token_id)
            self._parents.append(parent)
            self._depths.append(self._depths[parent] + 1)
            self._edges.append(log_probability)
            self._sources.append({source})
        else:
            self._edges[node] = max(log_probability, self._edges[node])
            self._sources[node].add(source)
        return node

    def add_all(self, parent: int, candidates: Iterable[tuple[int, float]], source: str) -> list[int]:
        """Several children of one node: (token, log-probability) each."""
        return [self.add(parent, token, log_probability, source) for token, log_probability in candidates]

    def scores(self) -> list[float]:
        """Cumulative log-probability of every node."""
        scores: list[float] = []
        for parent, edge in zip(self._parents, self._edges, strict=True):
            scores.append(0.0 if parent is None else scores[parent] + edge)
        return scores

    def ranked(self, max_depth: int | None = None) -> list[int]:
        """Nodes (without the root) from best to worst; ties go to the ancestor, then to the older node."""
        deepest = len(self) if max_depth is None else max_depth
        rated = zip(self.scores(), self._depths, range(len(self)), strict=True)
        order = sorted((-score, depth, node) for score, depth, node in rated if 0 < depth <= deepest)
        return [node for _, _, node in order]

    def trim(self, nodes: int, max_depth: int, always: Collection[int] = ()) -> Trimmed:
        """The best `nodes` nodes no deeper than `max_depth`; those of `always` first (with each, its ancestors).

        The top of the ranking is ancestor-closed, and so is a union of ancestor-closed sets.
        """
        kept = {ROOT}
        # `always` is taken parents first, so that a limit below its size still leaves a tree
        first = sorted({a for node in always for a in self._lineage(node)}, key=lambda n: (self._depths[n], n))
        for node in [*first, *self.ranked(max_depth)]:
            if len(kept) > nodes:
                break
            if self._depths[node] <= max_depth and self._parents[node] in kept:
                kept.add(node)
        return self._cut(sorted(kept))

    def _lineage(self, node: int) -> list[int]:
        """The node and its ancestors, without the root."""
        nodes: list[int] = []
        at: int | None = node
        while at:
            nodes.append(at)
            at = self._parents[at]
        return nodes

    def _cut(self, nodes: list[int]) -> Trimmed:
        rows: Mapping[int | None, int] = {node: row for row, node in enumerate(nodes)}
        scores = self.scores()
        tree = DraftTree(
            tuple(self._tokens[node] for node in nodes),
            tuple(None if self._parents[node] is None else rows[self._parents[node]] for node in nodes),
            tuple(scores[node] for node in nodes),
            tuple("+".join(sorted(self._sources[node])) for node in nodes),
        )
        return Trimmed(tree, tuple(nodes))
