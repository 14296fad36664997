"""The two embedding tables of an SLM's checkpoint for the CPU: the file's own bytes, memory-mapped, not repacked.

Their rows are the inputs `embedding` and `per_layer` of the static graph (export/graphs/slm.py), which says by what
factor they are multiplied. The checkpoint's files must stay as they are while a table is in use, or until it is saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from export.checkpoint.slm_tensors import PER_LAYER_TABLE, TOKEN_TABLE, full_name, table_shapes
from export.graphs.slm import per_layer_factor
from quant.packed_table import PackedTable

if TYPE_CHECKING:
    from export.checkpoint.slm import SlmCheckpoint


def token_table(checkpoint: SlmCheckpoint) -> PackedTable:
    """Rows [hidden_size] of token embeddings times sqrt(hidden_size), as the model's embedding layer returns them.

    Raises CheckpointError where the file cannot be mapped any more.
    """
    return _table(checkpoint, TOKEN_TABLE, checkpoint.config.hidden_size**0.5)


def per_layer_table(checkpoint: SlmCheckpoint) -> PackedTable:
    """Rows [layers * per_layer_width] of per-layer embeddings times `per_layer_factor`. Raises as `token_table`."""
    return _table(checkpoint, PER_LAYER_TABLE, per_layer_factor(checkpoint.config))


def _table(checkpoint: SlmCheckpoint, module: str, factor: float) -> PackedTable:
    name = full_name(checkpoint.prefix, module)
    bits = checkpoint.bits.table(name)
    assert bits is not None, "checked on opening"
    codes, scale = (checkpoint.reader.mapped(f"{name}.{part}") for part in ("embedding_quantized", "embedding_scale"))
    return PackedTable(codes, scale, bits, table_shapes(checkpoint.config)[module][1], factor)
