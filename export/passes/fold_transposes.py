"""MatMul(x, Transpose(W)) -> MatMul(x, W^T) with W^T stored.

The tracer folds small weights itself and leaves large ones; HTP wants every weight as a constant matrix [in, out].
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import add_initializer, drop_unused_initializers, is_constant, name_of


class FoldTransposes(InPlacePass):
    """Fold transposes of constant matrices."""

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        folded = 0
        for node in list(graph):
            source = node.inputs[0] if node.inputs else None
            if node.op_type != "Transpose" or source is None or not is_constant(source):
                continue
            assert source.const_value is not None
            array = source.const_value.numpy()
            permutation = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
            # A view: the bytes are laid out once, when the weight is quantised or written.
            transposed = ir.tensor(np.transpose(array, permutation))
            output = node.outputs[0]
            constant = add_initializer(graph, f"{name_of(source)}.transposed", transposed)
            ir.convenience.replace_all_uses_with(output, constant)
            graph.remove(node, safe=True)
            folded += 1
        drop_unused_initializers(graph)
        return PassResult(model, modified=folded > 0)

    def ensures(self, model: ir.Model) -> None:
        left = [node.name for node in model.graph if node.op_type == "Transpose" and is_constant(node.inputs[0])]
        if left:
            raise PassError(f"transposes of constants are left: {left}")
