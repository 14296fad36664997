"""The SLM's share of a round: which of a tree's nodes it has run, and which rows of its cache are theirs.

A row is text (its keys and values are the cache's), drafted (stored behind the text, at a place), or nothing. Accepted
tokens that were never run wait, and go in front of the next round's first pass as a chain: catch-up rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from export.graphs.tree_feeds import RowTree
from hyco_npu.decode.drafters.phases import FEEDS, STATE, TREE
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.scores import best_candidates
from hyco_npu.decode.tree import ROOT, GrowingTree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.drafters.parts import SlmEngine
    from hyco_npu.decode.scores import Candidate, SourceScore


@dataclass(eq=False)
class SlmRow:
    """A row that was run: its token and the row it follows (None: the text). `place`: where among the drafted rows."""

    token_id: int
    parent: SlmRow | None
    place: int | None = None


@dataclass(eq=False)
class SlmTree:
    """A growing tree and the rows of its nodes. `behind`: the row that its root follows; None: the text.

    `likeliest`: of every node that was run, the SLM's first choice behind it. `rows`: of those that are kept.
    """

    tree: GrowingTree
    behind: SlmRow | None = None
    rows: dict[int, SlmRow] = field(default_factory=dict)
    likeliest: dict[int, int] = field(default_factory=dict)


class SlmRows:
    """One text at the SLM."""

    def __init__(self, engine: SlmEngine, children: int, score: SourceScore, clock: Clock) -> None:
        self._engine, self._children, self._score, self._clock = engine, children, score, clock
        self._text = engine.model.begin()
        self._waiting: list[int] = []
        self._front: list[SlmRow] = []
        self._drafted: list[SlmRow] = []

    @property
    def rows_a_pass(self) -> int:
        """Rows that the draft graph runs at once."""
        return self._engine.model.draft_rows

    def room(self, nodes: int) -> int:
        """Rows that a first pass has left beside `nodes` nodes, the root among them, and the tokens that wait."""
        front = len(self._waiting) - 1
        return max(0, self.rows_a_pass - nodes - (front if front + nodes <= self.rows_a_pass else 0))

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take accepted tokens behind the text; all but the last are run by the prefill graph. Drafts are forgotten."""
        self._accept(self._front, ())
        self._waiting += token_ids
        self._catch_up()

    def plant(self) -> SlmTree:
        """A tree whose root is the last accepted token. Raises DecodeError where that one's tree has been drafted."""
        if not self._waiting:
            raise DecodeError("a draft has no reply yet, or no text was begun; commit a reply before the next draft")
        return SlmTree(GrowingTree(self._waiting[-1]))

    def plant_behind(self, grown: SlmTree, node: int, token_id: int) -> SlmTree:
        """A tree whose root is a guess: `token_id` behind a node of another tree that was run."""
        return SlmTree(GrowingTree(token_id), behind=grown.rows[node])

    def expand(self, grown: SlmTree, nodes: Sequence[int]) -> list[list[Candidate]]:
        """Run nodes, parents first, in one pass: the likeliest children of each.

        With a root behind the text, the accepted tokens that wait go in front; the prefill graph takes them where the
        draft graph has no room. Raises DecodeError for a node whose parent has no row.
        """
        if ROOT in nodes and grown.behind is None and len(self._waiting) - 1 + len(nodes) > self.rows_a_pass:
            self._catch_up()
        front = self._front_rows() if ROOT in nodes and grown.behind is None else []
        new = [*front, *self._node_rows(grown, nodes, front)]
        logits = self._run(new)[len(front) :]
        candidates = self._likeliest(logits)
        for node, of_node in zip(nodes, candidates, strict=True):
            grown.likeliest[node] = of_node[0][0]
        if ROOT in nodes and grown.behind is None:
            self._front, self._waiting = [*front, grown.rows[ROOT]], []
        return candidates

    def keep(self, *wanted: tuple[SlmTree, Iterable[int]]) -> None:
        """Let what is text become text, and keep the drafted rows of the wanted nodes: the others can matter no more.

        Nodes come from best to worst, ancestors before descendants; where the next pass could not read all of their
        rows, the last are forgotten. The rows before the first tree's root are kept with it.
        """
        rows = _ancestry(wanted[0][0].behind)
        for grown, nodes in wanted:
            rows += [grown.rows[node] for node in nodes if node in grown.rows]
        unsettled = [row for row in dict.fromkeys(rows) if row.place is not None and row not in self._front]
        # as many as a sliding layer can read beside a pass (TreeFeedBuilder)
        kept = unsettled[: self.rows_a_pass + 1]
        front = self._front
        self._accept(front, kept)
        staying = {*kept}
        for grown, _ in wanted:
            grown.rows = {n: row for n, row in grown.rows.items() if row.place is None or row in staying}

    def commit(
        self, emitted: Sequence[int], grown: SlmTree | None, path: Sequence[int], ahead: SlmTree | None = None
    ) -> None:
        """Take what a round emitted: `path`, nodes of `grown`, and the tokens behind it.

        `ahead`: the tree behind the path's last node whose root is the last emitted token, run already; it stays
        drafted. All else is forgotten.
        """
        rows = {} if grown is None else grown.rows
        run = [rows[node] for node in takewhile(rows.__contains__, path)]
        if ahead is None:
            self._accept([*self._front, *run], ())
            self._waiting += emitted[len(run) :]
        else:
            root = ahead.rows[ROOT]
            self._accept([*self._front, *run, root], [row for row in ahead.rows.values() if row is not root])

    def _run(self, new: Sequence[SlmRow]) -> np.ndarray:
        """Raw logits [new, columns]."""
        stored = len(self._drafted)
        for place, row in enumerate(new, start=stored):
            row.place = place
        self._drafted += new
        parents = tuple(None if row.parent is None else row.parent.place for row in self._drafted)
        with self._clock.phase(FEEDS):
            return self._text.draft(RowTree(parents, stored), [row.token_id for row in new])

    def _likeliest(self, logits: np.ndarray) -> list[list[Candidate]]:
        """Candidates of every row."""
        cap = self._engine.model.config.final_logit_softcapping
        with self._clock.phase(TREE):
            return best_candidates(logits, self._engine.token_ids, self._children, self._score, cap)

    def _front_rows(self) -> list[SlmRow]:
        rows: list[SlmRow] = []
        for token in self._waiting[:-1]:
            rows.append(SlmRow(token, rows[-1] if rows else None))
        return rows

    def _node_rows(self, grown: SlmTree, nodes: Sequence[int], front: Sequence[SlmRow]) -> list[SlmRow]:
        rows = []
        for node in nodes:
            parent = grown.tree.parent(node)
            if parent is None:
                behind = front[-1] if front else grown.behind
            elif parent in grown.rows:
                behind = grown.rows[parent]
            else:
                raise DecodeError(f"node {node} cannot be run: its parent {parent} has no row")
            grown.rows[node] = SlmRow(grown.tree.token(node), behind)
            rows.append(grown.rows[node])
        return rows

    def _catch_up(self) -> None:
        """Run all accepted tokens but the last, which is a root."""
        with self._clock.phase(FEEDS):
            self._text.prefill(self._waiting[:-1])
        self._waiting = self._waiting[-1:]

    def _accept(self, rows: Sequence[SlmRow], still_drafted: Iterable[SlmRow]) -> None:
        """Make drafted rows text; of the others only `still_drafted` stay."""
        staying = {*still_drafted}
        with self._clock.phase(STATE):
            places = [place for place, row in enumerate(self._drafted) if row in staying]
            self._text.cache.accept([_place(row) for row in rows], places)
        for row in rows:
            # text follows text: without this every row would hold on to all before it
            row.place, row.parent = None, None
        self._drafted = [self._drafted[place] for place in places]
        for place, row in enumerate(self._drafted):
            row.place = place
        self._front = []


def _place(row: SlmRow) -> int:
    if row.place is None:
        raise DecodeError(f"token {row.token_id} is to be accepted, but its row is not drafted")
    return row.place


def _ancestry(row: SlmRow | None) -> list[SlmRow]:
    """A row and those it follows, the first of them first."""
    rows: list[SlmRow] = []
    while row is not None:
        rows.append(row)
        row = row.parent
    return rows[::-1]
