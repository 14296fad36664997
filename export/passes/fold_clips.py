"""y = Clip(x, low, high)  ->  y = x with the quantisation range (low, high), whose saturation is the clip

Where x has other readers, or is moved before it is clipped together with others, the clip becomes an Identity: a
conversion to another range at that place.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import MOVES, drop_unused_initializers, is_constant, name_of

_ONE_TO_ONE_MOVES = frozenset({"Reshape", "Transpose"})
_NO_MAKERS = MOVES - _ONE_TO_ONE_MOVES | {"Clip", "Identity"}


class FoldClips(InPlacePass):
    """Remove every Clip; `bounds` holds the ranges that stand for them, by value name."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: dict[str, tuple[float, float]] = {}

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        clips = [node for node in graph if node.op_type == "Clip"]
        for node in _merged(graph, clips):
            bounds = _bounds(node)
            source, clipped = node.inputs[0], node.outputs[0]
            assert source is not None
            root = _root(source)
            if root is None or name_of(root) in self.bounds:
                identity = ir.node("Identity", [source], name=f"{node.name}.convert")
                identity.outputs[0].shape, identity.outputs[0].type = clipped.shape, clipped.type
                graph.insert_before(node, identity)
                self._put(graph, node, identity.outputs[0])
                self.bounds[name_of(identity.outputs[0])] = bounds
            else:
                self._put(graph, node, source)
                self.bounds[name_of(root)] = bounds
        drop_unused_initializers(graph)
        return PassResult(model, modified=bool(clips))

    def ensures(self, model: ir.Model) -> None:
        left = [node.name for node in model.graph if node.op_type == "Clip"]
        if left:
            raise PassError(f"clips are left: {left}")

    @staticmethod
    def _put(graph: ir.Graph, clip: ir.Node, value: ir.Value) -> None:
        """`value` in place of the clip's output, under its name where that is a graph output's or `value` has none."""
        clipped = clip.outputs[0]
        name, is_output = name_of(clipped), clipped.is_graph_output()
        ir.convenience.replace_all_uses_with(clipped, value, replace_graph_outputs=True)
        graph.remove(clip, safe=True)
        if is_output or value.name is None:
            value.name = name


def _merged(graph: ir.Graph, clips: list[ir.Node]) -> list[ir.Node]:
    """One clip for each source and bounds; graph outputs keep clips of their own."""
    first: dict[tuple[ir.Value | None, tuple[float, float]], ir.Node] = {}
    kept = []
    for node in clips:
        same = first.setdefault((node.inputs[0], _bounds(node)), node)
        if same is node or node.outputs[0].is_graph_output():
            kept.append(node)
        else:
            ir.convenience.replace_all_uses_with(node.outputs[0], same.outputs[0])
            graph.remove(node, safe=True)
    return kept


def _bounds(clip: ir.Node) -> tuple[float, float]:
    low, high = (*clip.inputs, None, None)[1:3]
    if low is None or high is None or not is_constant(low) or not is_constant(high):
        raise PassError(f"{clip.name} has bounds that are not constants")
    assert low.const_value is not None
    assert high.const_value is not None
    return float(low.const_value.numpy()), float(high.const_value.numpy())


def _root(value: ir.Value) -> ir.Value | None:
    """The value that a clip of `value` may bound instead: its own maker's output, before mere moves; None for none."""
    while True:
        producer = value.producer()
        if producer is None or len(value.uses()) != 1 or value.is_graph_output():
            return None
        if producer.op_type in _NO_MAKERS:
            return None
        if producer.op_type not in _ONE_TO_ONE_MOVES:
            return value
        moved = producer.inputs[0]
        assert moved is not None
        value = moved
