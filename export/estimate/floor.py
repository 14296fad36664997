"""The floor that memory sets: a pass cannot end before its bytes have crossed the bus.

    floor_us = (weight bytes + input bytes + output bytes) / bandwidth

Weights do not fit into the NPU's own memory and are read anew in every pass; keys and values are inputs. What a pass
spills and reads again comes on top, so a good graph comes near the floor. The compiler's cost model has a bandwidth of
its own that it does not tell: a floor at a lower bandwidth than that can lie above its estimate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from export.errors import BundleError

if TYPE_CHECKING:
    from export.bundle.manifest import GraphInfo, TensorInfo

ASSUMED_BANDWIDTH_GBPS = 60.0
"""What an NPU is taken to draw from a phone's memory, in 1e9 bytes a second: an assumption, not a measurement.

The data sheets' peak is 84.8 (64-bit LPDDR5X at 5,300 MHz, as SM8750 and SM8850 support); 60 is about 70% of it.
"""

_ITEM_BYTES = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "int32": 4, "uint32": 4, "float32": 4}


def boundary_bytes(graph: GraphInfo) -> int:
    """Bytes of all inputs (keys and values among them) and outputs of one pass.

    Raises BundleError for an element type without a size.
    """
    return sum(map(_tensor_bytes, (*graph.inputs, *graph.outputs)))


def floor_us(crossing_bytes: int, bandwidth_gbps: float) -> float:
    """Microseconds that `crossing_bytes` take at `bandwidth_gbps` gigabytes (1e9 bytes) a second."""
    return crossing_bytes / (bandwidth_gbps * 1e3)


def _tensor_bytes(tensor: TensorInfo) -> int:
    if tensor.dtype not in _ITEM_BYTES:
        known = ", ".join(_ITEM_BYTES)
        raise BundleError(f"manifest: tensor {tensor.name!r} has type {tensor.dtype!r}; want one of {known}")
    return math.prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]
