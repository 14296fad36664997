"""Runs passes in order and turns whatever breaks into one error that names the pass."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onnx_ir.passes import InvariantError, PassBase

from export.errors import PassError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

logger = logging.getLogger(__name__)


def run_passes(model: ir.Model, passes: Sequence[PassBase]) -> ir.Model:
    """Apply `passes` in order, checking each one's pre- and postcondition.

    Raises:
        PassError: naming the pass, its reason and the nodes or values concerned.
    """
    for graph_pass in passes:
        name = type(graph_pass).__name__
        try:
            result = graph_pass(model)
        except (PassError, InvariantError) as error:
            raise PassError(f"graph pass {name} failed: {_reason(error)}") from error
        logger.debug("pass %s: %s", name, "changed the graph" if result.modified else "nothing to do")
        model = result.model
    return model


def _reason(error: BaseException) -> str:
    # onnx_ir wraps what a condition raised; the innermost message is the reason.
    while isinstance(error, InvariantError) and error.__cause__ is not None:
        error = error.__cause__
    return str(error)
