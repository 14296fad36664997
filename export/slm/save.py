"""Write graphs that have the same weights so that these lie on disk once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import onnx_ir as ir

from export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_INLINE_BYTES: Final = 256
"""Tensors of at most so many bytes stand in the graph's own file."""


def save_sharing_weights(models: Mapping[Path, ir.Model], data_name: str) -> None:
    """Write the first model with its weights in `data_name` beside it, and the others with references into that file.

    A weight of the others is known by its name, and must be in the first model, of the same type and shape; small ones
    stand in every graph's own file. Raises ExportError for one that is not.
    """
    first, *rest = models
    ir.save(models[first], first, external_data=data_name, size_threshold_bytes=_INLINE_BYTES)
    written = {
        name: value.const_value
        for name, value in ir.load(first).graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    for path in rest:
        for name, value in models[path].graph.initializers.items():
            tensor = value.const_value
            assert tensor is not None
            if tensor.nbytes <= _INLINE_BYTES:
                continue
            found = written.get(name)
            if found is None or (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
                raise ExportError(f"weight {name!r} is not the same in {first.name} and {path.name}")
            value.const_value = found
        ir.save(models[path], path)
