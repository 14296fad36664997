"""x . keys  ->  Concat_i(x . keys_i)   and   weights . values  ->  Concat_i(weights . values_i)

keys_i is a piece of the window, values_i a piece of the head's dimensions: the last axis of either operand, so that
every number of the result is computed as before. Where the 16-bit keys and values of a layer crowd the NPU's fast
memory (8 MiB) they are spilled and filled again; pieces pass through. Where they leave room, pieces only cost.

Pieces of the values' window, whose products would have to be added, are a little faster and less exact: on HTP
every product comes out a little too low, and adding four of them quadruples that (docs/decisions/0007).

The pass runs after calibration. What it adds takes the ranges of what was there, so that one calibration serves graphs
with pieces and without, and no piece depends on what the calibration texts left in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.graphs.mtp import KINDS
from export.passes.common import add_initializer, name_of, static_shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from export.activation_params import Range

PIECES = 4
_CROWDED_BYTES = 7 * 2**20
"""On the estimate of the 26B-A4B head, pieces cost at 6 MiB (a window of 768) and gain at 7 (896)."""


def worth_splitting(graph: ir.Graph) -> bool:
    """Whether 16-bit keys and values gain from pieces: those of one kind of layer crowd the fast memory, and divide."""
    shapes = {name_of(value): static_shape(value) for value in _keys_values(graph)}
    largest = max(2 * math.prod(shapes[f"keys_{kind}"]) + 2 * math.prod(shapes[f"values_{kind}"]) for kind in KINDS)
    return largest >= _CROWDED_BYTES and all(shape[-1] % PIECES == 0 for shape in shapes.values())


class SplitProducts(InPlacePass):
    """Cut every product with `keys_*` and `values_*` into `PIECES`; the results keep their names."""

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[str, str] = {}

    def requires(self, model: ir.Model) -> None:
        for value in _keys_values(model.graph):
            size = static_shape(value)[-1]
            if size % PIECES:
                raise PassError(f"the last axis of {value.name!r} has size {size}: no multiple of {PIECES}")
            others = [node.name for node, index in value.uses() if (node.op_type, index) != ("MatMul", 1)]
            if others:
                raise PassError(f"{value.name!r} is read by {others}, which are no products with it")

    def call(self, model: ir.Model) -> PassResult:
        for value in _keys_values(model.graph):
            products = [node for node, _ in value.uses()]
            pieces = self._split(model.graph, value)
            for product in products:
                self._join(model.graph, product, pieces)
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        whole = [v.name for v in _keys_values(model.graph) if any(node.op_type != "Split" for node, _ in v.uses())]
        if whole:
            raise PassError(f"{whole} are still multiplied whole")

    def ranges_from(self, ranges: Mapping[str, Range]) -> dict[str, Range]:
        """Ranges of the values that the pass added, taken from the `ranges` of those that were there."""
        return {name: ranges[source] for name, source in self._sources.items() if source in ranges}

    def _split(self, graph: ir.Graph, value: ir.Value) -> list[ir.Value]:
        shape = static_shape(value)
        width = shape[-1] // PIECES
        pieces = [self._piece(value, index, width) for index in range(PIECES)]
        sizes = add_initializer(graph, f"{name_of(value)}.sizes", ir.tensor([width] * PIECES, dtype=ir.DataType.INT64))
        attributes = {"axis": len(shape) - 1}
        node = ir.node("Split", [value, sizes], attributes, outputs=pieces, name=f"{name_of(value)}.pieces@Split")
        graph.insert_before(graph[0], node)
        return pieces

    def _join(self, graph: ir.Graph, product: ir.Node, pieces: Sequence[ir.Value]) -> None:
        left, result = product.inputs[0], product.outputs[0]
        joined = ir.Value(name=result.name, shape=result.shape, type=result.type)
        nodes = []
        for index, piece in enumerate(pieces):
            part = self._piece(result, index, static_shape(piece)[-1])
            nodes.append(ir.node("MatMul", [left, piece], outputs=[part], name=f"{name_of(part)}@MatMul"))
        parts, attributes = [node.outputs[0] for node in nodes], {"axis": len(static_shape(result)) - 1}
        nodes.append(ir.node("Concat", parts, attributes, outputs=[joined], name=f"{name_of(joined)}@Concat"))
        graph.insert_before(product, nodes)
        ir.convenience.replace_all_uses_with(result, joined)
        graph.remove(product, safe=True)

    def _piece(self, of: ir.Value, index: int, width: int) -> ir.Value:
        name = f"{name_of(of)}.piece.{index}"
        self._sources[name] = name_of(of)
        return ir.Value(name=name, shape=ir.Shape([*static_shape(of)[:-1], width]), type=of.type)


def _keys_values(graph: ir.Graph) -> list[ir.Value]:
    names = {f"{role}_{kind}" for role in ("keys", "values") for kind in KINDS}
    return [value for value in graph.inputs if value.name in names]
