"""The float32 step graph of a head: traced, named, cut to the keep set, its output layer chunked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from export.graphs.mtp import MtpHead, MtpInputs
from export.graphs.trace import trace_module
from export.passes import run_passes
from export.passes.chunk_head import ChunkHead
from export.passes.fold_transposes import FoldTransposes
from export.passes.name_values import NameValues
from export.passes.restrict_vocabulary import RestrictVocabulary

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir


def build_float_graph(head: MtpHead, keep: np.ndarray, window: int) -> ir.Model:
    """The step graph of `head` over the token ids `keep`; outputs `next_hidden` and `logits_0`, `logits_1`, ..."""
    model = trace_module(head, MtpInputs(head.config, window).shapes(), ["next_hidden", "logits"])
    return run_passes(model, [FoldTransposes(), NameValues(), RestrictVocabulary(keep), ChunkHead()])
