"""new_keys = move(x)  ->  new_keys = move(Identity(x)), likewise new_values

The Identity is where numbers change from 16 bits to the cache's 8; all behind it (transposes, the cache's
concatenation) moves 8-bit codes. `DropConversions` removes it once both sides have their quantisation.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import MOVES, name_of

_PREFIXES = ("new_keys_", "new_values_")


class ConvertCaches(InPlacePass):
    """Insert a conversion in front of the moves that lead to every output of new keys or values."""

    def call(self, model: ir.Model) -> PassResult:
        outputs = [value for value in model.graph.outputs if name_of(value).startswith(_PREFIXES)]
        for output in outputs:
            move = _first_move(output)
            source = move.inputs[0]
            assert source is not None
            conversion = ir.node("Identity", [source], name=f"{name_of(output)}.convert")
            conversion.outputs[0].name = f"converted.{name_of(output)}"
            conversion.outputs[0].shape, conversion.outputs[0].type = source.shape, source.type
            model.graph.insert_before(move, conversion)
            move.replace_input_with(0, conversion.outputs[0])
        return PassResult(model, modified=bool(outputs))


class DropConversions(InPlacePass):
    """DequantizeLinear -> Identity -> QuantizeLinear  ->  DequantizeLinear -> QuantizeLinear, which HTP converts."""

    def call(self, model: ir.Model) -> PassResult:
        identities = [node for node in model.graph if node.op_type == "Identity"]
        for node in identities:
            source = node.inputs[0]
            assert source is not None
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            model.graph.remove(node, safe=True)
        return PassResult(model, modified=bool(identities))

    def requires(self, model: ir.Model) -> None:
        for node in model.graph:
            if node.op_type != "Identity":
                continue
            source, readers = node.inputs[0], [reader.op_type for reader, _ in node.outputs[0].uses()]
            producer = source.producer() if source is not None else None
            if producer is None or producer.op_type != "DequantizeLinear" or readers != ["QuantizeLinear"]:
                raise PassError(f"conversion {node.name} does not stand between two quantisations")


def _first_move(output: ir.Value) -> ir.Node:
    node = output.producer()
    if node is None or node.op_type not in MOVES:
        raise PassError(f"graph output {output.name!r} is not the result of a move")
    while True:
        source = node.inputs[0]
        producer = source.producer() if source is not None else None
        if producer is None or producer.op_type not in MOVES:
            return node
        node = producer
