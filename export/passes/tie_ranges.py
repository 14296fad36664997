"""range(y) = range(x) for y = move(x), and for every named tie

Reshape, Transpose, Slice, Split and Concat copy numbers, so their inputs and outputs must carry the same scale; a
Concat ties all that it joins. Further ties are given: a graph output that comes back as an input of the next step,
the chunks of one output layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import MOVES, float_values, moved_inputs, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

RANGE_OWNER = "hyco.range_owner"
"""Key of a value's metadata: the name of the value whose range it takes."""


class TieRanges(InPlacePass):
    """Note on every float value which value owns its range: the first of its group in graph order."""

    def __init__(self, ties: Sequence[Sequence[str]] = ()) -> None:
        super().__init__()
        self.ties = ties

    def requires(self, model: ir.Model) -> None:
        known = {name_of(value) for value in float_values(model.graph)}
        unknown = sorted({name for tie in self.ties for name in tie} - known)
        if unknown:
            raise PassError(f"tied values do not exist: {unknown}")

    def call(self, model: ir.Model) -> PassResult:
        order = {name_of(value): index for index, value in enumerate(float_values(model.graph))}
        parent = {name: name for name in order}

        def root(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        def tie(first: str, second: str) -> None:
            a, b = sorted((root(first), root(second)), key=order.__getitem__)
            parent[b] = a

        for node in model.graph:
            if node.op_type in MOVES:
                for moved in moved_inputs(node):
                    for output in node.outputs:
                        tie(name_of(moved), name_of(output))
        for group in self.ties:
            for name in group[1:]:
                tie(group[0], name)
        for value in float_values(model.graph):
            value.metadata_props[RANGE_OWNER] = root(name_of(value))
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        for node in model.graph:
            if node.op_type not in MOVES:
                continue
            owners = {value.metadata_props[RANGE_OWNER] for value in (*moved_inputs(node), *node.outputs)}
            if len(owners) != 1:
                raise PassError(f"{node.op_type} {node.name} joins ranges of {sorted(owners)}")


def range_groups(graph: ir.Graph) -> dict[str, list[str]]:
    """Range owner -> the names of all values that take its range (TieRanges must have run)."""
    groups: dict[str, list[str]] = {}
    for value in float_values(graph):
        groups.setdefault(value.metadata_props[RANGE_OWNER], []).append(name_of(value))
    return groups
