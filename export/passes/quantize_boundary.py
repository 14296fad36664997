"""input float -> Q -> DQ  becomes  input integer -> DQ;  Q -> DQ -> output float  becomes  Q -> output integer

No float crosses the boundary of an NPU graph.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import drop_unused_initializers, name_of


class QuantizeBoundary(InPlacePass):
    """Make every graph input and output an integer tensor under its old name."""

    def requires(self, model: ir.Model) -> None:
        for value in model.graph.inputs:
            readers = [node for node, _ in value.uses()]
            if len(readers) != 1 or readers[0].op_type != "QuantizeLinear":
                raise PassError(f"input {value.name!r} is not quantised where it enters")
        for value in model.graph.outputs:
            producer = value.producer()
            if producer is None or producer.op_type != "DequantizeLinear":
                raise PassError(f"output {value.name!r} is not dequantised where it leaves")

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        for index, value in enumerate(list(graph.inputs)):
            node = next(iter(value.uses()))[0]
            entering = node.outputs[0]
            integer = ir.Value(name=name_of(value), shape=value.shape, type=entering.type)
            ir.convenience.replace_all_uses_with(entering, integer)
            graph.remove(node, safe=True)
            graph.inputs[index] = integer
        for index, value in enumerate(list(graph.outputs)):
            restore = value.producer()
            assert restore is not None
            quantized = restore.inputs[0]
            assert quantized is not None
            original = name_of(value).removesuffix(".dq")
            quantize_node = quantized.producer()
            assert quantize_node is not None
            unquantized = quantize_node.inputs[0]
            assert unquantized is not None
            unquantized.name = f"{original}.float"
            quantized.name = original
            graph.outputs[index] = quantized
            if not value.uses():
                graph.remove(restore, safe=True)
        drop_unused_initializers(graph)
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        floats = [v.name for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype == ir.DataType.FLOAT]
        if floats:
            raise PassError(f"floats at the graph boundary: {floats}")
