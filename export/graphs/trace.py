"""From a static torch module to an ONNX IR model with plain operators and readable names."""

from __future__ import annotations

import io
import logging
import warnings
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

OPSET = 23
"""RMSNormalization exists from opset 23 on; HTP takes it whole, seven times more precise than its parts."""


def trace_module(
    module: torch.nn.Module,
    input_shapes: Mapping[str, tuple[int, ...]],
    output_names: Sequence[str],
    dynamic_shapes: Any = None,
) -> ir.Model:
    """Trace `module`, float32 in and out; initializers share the module's memory.

    Shapes are fixed but for what `dynamic_shapes` leaves open, in the form of torch.export.
    """
    examples = tuple(torch.zeros(shape) for shape in input_shapes.values())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            examples,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(input_shapes),
            output_names=list(output_names),
            dynamic_shapes=dynamic_shapes,
            verbose=False,
        )
    assert program is not None
    return program.model
