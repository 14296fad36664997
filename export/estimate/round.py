"""One drafting round: the MTP head drafts a chain, then one pass of the SLM grows siblings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from export.estimate.graph import GraphEstimate

PASSES = {"mtp": 4, "slm": 1}
"""Passes of each kind of bundle in one round: a chain of four, one tree pass."""


@dataclass(frozen=True)
class RoundPart:
    """`passes` of the graph `graph`, out of the bundle of kind `kind`."""

    kind: str
    graph: str
    passes: int


@dataclass(frozen=True)
class Round:
    """The sum over `parts`: scaled microseconds with lower and upper estimate, and the floor."""

    parts: tuple[RoundPart, ...]
    us: float
    us_low: float
    us_high: float
    floor_us: float

    @property
    def ratio(self) -> float:
        """Time against the floor."""
        return self.us / self.floor_us

    @property
    def missing_kinds(self) -> tuple[str, ...]:
        """Kinds of bundle that a whole round has and this one lacks."""
        return tuple(kind for kind in PASSES if kind not in {part.kind for part in self.parts})

    def __str__(self) -> str:
        return " + ".join(f"{part.passes} x {part.graph}" for part in self.parts)


def drafting_round(graphs: Iterable[GraphEstimate]) -> Round:
    """Four MTP steps and one SLM pass, as far as the graphs are there.

    Of several graphs of one kind the one with the fewest rows drafts; the others fill the cache before the first round.
    """
    drafting: dict[str, GraphEstimate] = {}
    for graph in graphs:
        if graph.kind not in drafting or graph.rows < drafting[graph.kind].rows:
            drafting[graph.kind] = graph
    weighted = [(drafting[kind], passes) for kind, passes in PASSES.items() if kind in drafting]
    return Round(
        parts=tuple(RoundPart(graph.kind, graph.name, passes) for graph, passes in weighted),
        us=sum(graph.us * passes for graph, passes in weighted),
        us_low=sum(graph.us_low * passes for graph, passes in weighted),
        us_high=sum(graph.us_high * passes for graph, passes in weighted),
        floor_us=sum(graph.floor_us * passes for graph, passes in weighted),
    )
