"""A graph's boundary: names, types and quantisation of its inputs and outputs, and conversion from and to floats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from quant.affine import AffineParams, dequantize, quantize
from quant.dtypes import INT8, INT16, UINT8, UINT16

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quant.dtypes import IntegerType

Feed = dict[str, np.ndarray]
_CHUNK = re.compile(r"logits_\d+")
_TYPES = {t.name: t for t in (INT8, UINT8, INT16, UINT16)}


class StepGraph(Protocol):
    """Anything that runs one step: floats in, floats out, by name."""

    def run(self, feed: Feed) -> Feed:
        """Feed and result hold float32 arrays; quantisation is the engine's business."""
        ...


@dataclass(frozen=True)
class BoundaryTensor:
    """One integer input or output: value = (code - zero_point) * scale."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float
    zero_point: int

    @property
    def params(self) -> AffineParams:
        """The same as quantisation parameters."""
        return AffineParams(torch.tensor(self.scale), torch.tensor(self.zero_point, dtype=torch.int32), self.integer)

    @property
    def integer(self) -> IntegerType:
        """The integer type of the codes."""
        return _TYPES[self.dtype]

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Floats [shape] -> codes [shape]."""
        if tuple(values.shape) != self.shape:
            raise ValueError(f"input {self.name!r} has shape {tuple(values.shape)}, the graph takes {self.shape}")
        codes = quantize(torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)), self.params)
        return codes.numpy().astype(self.dtype)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes -> floats."""
        return dequantize(torch.from_numpy(codes.astype(np.int32)), self.params).numpy()


@dataclass(frozen=True)
class Boundary:
    """All inputs and outputs of a quantised graph, in order."""

    inputs: tuple[BoundaryTensor, ...]
    outputs: tuple[BoundaryTensor, ...]

    def encode(self, feed: Feed) -> Feed:
        """Float feed -> integer feed; a missing or unknown name is an error."""
        names = {tensor.name for tensor in self.inputs}
        if names != feed.keys():
            raise ValueError(f"feed has {sorted(feed)}, the graph takes {sorted(names)}")
        return {tensor.name: tensor.encode(feed[tensor.name]) for tensor in self.inputs}

    def decode(self, codes: Sequence[np.ndarray]) -> Feed:
        """Integer outputs in order -> floats by name."""
        return {t.name: t.decode(c) for t, c in zip(self.outputs, codes, strict=True)}


def joined_logits(result: Mapping[str, np.ndarray]) -> np.ndarray:
    """The chunks `logits_0`, `logits_1`, ... of a result as one row [..., columns].

    An observed graph also has values like `logits_0.product`, which are none.
    """
    chunks = sorted((n for n in result if _CHUNK.fullmatch(n)), key=lambda n: int(n.rsplit("_", 1)[1]))
    return np.concatenate([result[name] for name in chunks], axis=-1)
