"""logits = x W  ->  logits = x W[:, keep]

The output layer keeps the columns of the keep set, in its order: column i is the token `keep[i]`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import add_initializer, constant_matrix, drop_unused_initializers, matmul_producing


class RestrictVocabulary(InPlacePass):
    """Cut the output layer behind graph output `logits` to the token ids `keep` [n]."""

    def __init__(self, keep: np.ndarray, logits: str = "logits") -> None:
        super().__init__()
        self.keep, self.logits = np.asarray(keep, dtype=np.int64), logits

    def requires(self, model: ir.Model) -> None:
        _, array = constant_matrix(matmul_producing(model.graph, self.logits))
        vocabulary = array.shape[1]
        if self.keep.size == 0 or (np.diff(self.keep) <= 0).any():
            raise PassError(f"keep set must be sorted, unique and not empty, has {self.keep.size} ids")
        if self.keep[0] < 0 or self.keep[-1] >= vocabulary:
            raise PassError(f"keep set ids {self.keep[0]}..{self.keep[-1]} exceed the vocabulary of {vocabulary}")

    def call(self, model: ir.Model) -> PassResult:
        node = matmul_producing(model.graph, self.logits)
        weight, array = constant_matrix(node)
        # Gather rows of the transposed view: memory stays at the size of what is kept.
        kept = array.T[self.keep].T
        node.replace_input_with(1, add_initializer(model.graph, f"{weight.name}.kept", ir.tensor(kept)))
        output = node.outputs[0]
        assert output.shape is not None
        output.shape = ir.Shape([*output.shape[:-1], self.keep.size])
        drop_unused_initializers(model.graph)
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        _, array = constant_matrix(matmul_producing(model.graph, self.logits))
        if array.shape[1] != self.keep.size:
            raise PassError(f"output layer has {array.shape[1]} columns, keep set {self.keep.size}")
