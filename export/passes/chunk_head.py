"""logits = x W  ->  logits_i = x W[:, chunk i], one graph output each

A product of more than 16K columns spills the NPU's fast memory; chunks do not, and run 2.5 times faster. They are
never concatenated on the NPU: top-k runs on the CPU over all of them.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import (
    add_initializer,
    constant_matrix,
    drop_unused_initializers,
    matmul_producing,
    name_of,
    static_shape,
)

MAX_COLUMNS = 16384
_ALIGNMENT = 32


def chunk_bounds(columns: int, max_columns: int = MAX_COLUMNS) -> list[tuple[int, int]]:
    """Near-equal column ranges of at most `max_columns`, their width a multiple of 32 but for the last."""
    count = math.ceil(columns / max_columns)
    width = min(max_columns, math.ceil(columns / count / _ALIGNMENT) * _ALIGNMENT)
    return [(start, min(start + width, columns)) for start in range(0, columns, width)]


class ChunkHead(InPlacePass):
    """Split the output layer behind `logits` into `logits_0`, `logits_1`, ..."""

    def __init__(self, logits: str = "logits", max_columns: int = MAX_COLUMNS) -> None:
        super().__init__()
        self.logits, self.max_columns = logits, max_columns

    def requires(self, model: ir.Model) -> None:
        matmul_producing(model.graph, self.logits)

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        node = matmul_producing(graph, self.logits)
        weight, array = constant_matrix(node)
        source = node.inputs[0]
        position, output = next((i, v) for i, v in enumerate(graph.outputs) if v.name == self.logits)
        last = output.producer()
        assert last is not None
        assert output.shape is not None
        chunks: list[ir.Value] = []
        for index, (start, end) in enumerate(chunk_bounds(array.shape[1], self.max_columns)):
            part = add_initializer(graph, f"{name_of(weight)}.{index}", ir.tensor(array[:, start:end]))
            shape = ir.Shape([*output.shape[:-1], end - start])
            made = [ir.node("MatMul", [source, part], name=f"{node.name}.{index}")]
            if last is not node:
                made.append(ir.node("Clip", [made[0].outputs[0], *last.inputs[1:]], name=f"{last.name}.{index}"))
                made[0].outputs[0].name = f"{name_of(node.outputs[0])}.{index}"
            for new in made:
                new.outputs[0].shape, new.outputs[0].type = shape, output.type
            graph.insert_before(node, made)
            made[-1].outputs[0].name = f"{self.logits}_{index}"
            chunks.append(made[-1].outputs[0])
        graph.outputs[position : position + 1] = chunks
        graph.remove([last] if last is node else [last, node], safe=True)
        drop_unused_initializers(graph)
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        for value in model.graph.outputs:
            columns = static_shape(value)[-1]
            if name_of(value).startswith(f"{self.logits}_") and columns > self.max_columns:
                raise PassError(f"{value.name} has {columns} columns, more than {self.max_columns}")
