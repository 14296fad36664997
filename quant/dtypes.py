"""The integer types of weights, activations and KV caches.

Knows nothing of ONNX or QNN type numbers: `export` maps these names to theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class IntegerType:
    """A two's complement (`signed`) or plain binary integer of `bits` bits."""

    name: str
    bits: int
    signed: bool

    @property
    def qmin(self) -> int:
        """Smallest code: -8 for int4, 0 for uint8."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Largest code: 7 for int4, 255 for uint8."""
        return self.qmin + (1 << self.bits) - 1

    @property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """The numpy type of the same width, None for the 2- and 4-bit types, which numpy lacks."""
        return np.dtype(self.name) if self.bits in (8, 16, 32) else None


INT2 = IntegerType("int2", 2, signed=True)
INT4 = IntegerType("int4", 4, signed=True)
INT8 = IntegerType("int8", 8, signed=True)
UINT8 = IntegerType("uint8", 8, signed=False)
INT16 = IntegerType("int16", 16, signed=True)
UINT16 = IntegerType("uint16", 16, signed=False)
