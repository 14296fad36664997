"""Embedding rows for the CPU as codes of 2, 4 or 8 bits, kept as a `quant_method: gemma` checkpoint stores them.

Row = code * scale * factor in float32, rounded after each product: bit for bit QuantizedEmbedding.forward of
transformers (integrations/gemma_quant.py). Arrays may be memory-mapped: only rows that are looked up are read. Knows
nothing of checkpoints: `export` hands the arrays over. For rows chosen by a keep set see table.py.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from quant.errors import QuantError, TableFileError, TokenIdError
from quant.packing import unpack_offset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KIND, SCHEMA_VERSION = "packed_table", "1"
_BITS = (2, 4, 8)
_TENSORS = ("codes", "scale")


@dataclass(frozen=True, eq=False)
class PackedTable:
    """Rows of `width` values: codes uint8 [rows, ceil(width * bits / 8)], scale float32 [rows, groups].

    Codes are packed as `quant.packing.pack_offset` does; 8-bit ones are int8 [rows, width]. A scale holds for
    width / groups neighbouring values, and `factor` (sqrt(hidden_size) for token embeddings) for all. Raises QuantError
    for arrays and numbers that do not agree; the contents are only looked at row by row.
    """

    codes: np.ndarray
    scale: np.ndarray
    bits: int
    width: int
    factor: float

    def __post_init__(self) -> None:
        if self.bits not in _BITS:
            raise QuantError(f"bits of a table are {self.bits}; 2, 4 and 8 are supported")
        if self.width < 1:
            raise QuantError(f"width of a table is {self.width}; a row has at least one value")
        if not (math.isfinite(self.factor) and self.factor > 0.0):
            raise QuantError(f"factor of a table is {self.factor}; a finite number above 0 is needed")
        needed = np.dtype(np.int8 if self.bits == 8 else np.uint8)
        size_bytes = -(-self.width * self.bits // 8)
        _check_array("codes", self.codes, needed)
        _check_array("scale", self.scale, np.dtype(np.float32))
        if self.codes.shape[1] != size_bytes:
            raise QuantError(
                f"codes are {list(self.codes.shape)}, but a row of {self.width} values of {self.bits} bits takes "
                f"{size_bytes} bytes"
            )
        rows, groups = self.scale.shape
        if rows != self.rows or self.width % groups:
            raise QuantError(
                f"scale is {list(self.scale.shape)}, but there are {self.rows} rows of {self.width} values; "
                "[rows, groups] is needed, with groups of one size"
            )

    @property
    def rows(self) -> int:
        """Number of rows; ids are 0..rows - 1."""
        return int(self.codes.shape[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of codes and scales together."""
        return int(self.codes.nbytes + self.scale.nbytes)

    def lookup(self, ids: np.ndarray) -> np.ndarray:
        """The rows of int64 `ids` [n] in their order, float32 [n, width].

        Raises TokenIdError naming the first id outside the table (none wraps), and QuantError for ids of another type
        and for a row whose scale is not finite.
        """
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise QuantError(f"token ids are {ids.dtype} {list(ids.shape)}; int64 [n] is needed")
        unknown = ids[(ids < 0) | (ids >= self.rows)]
        if len(unknown):
            raise TokenIdError(f"token id {unknown[0]} is not in the table, whose ids are 0..{self.rows - 1}")
        codes, scale = np.asarray(self.codes[ids]), np.asarray(self.scale[ids])
        broken = ids[~np.isfinite(scale).all(axis=1)]
        if len(broken):
            raise QuantError(f"scale of token id {broken[0]} is not finite; the table is damaged, make it again")
        if self.bits < 8:
            codes = unpack_offset(torch.from_numpy(codes), self.bits, self.width).numpy()
        groups = scale.shape[1]
        values = codes.astype(np.float32).reshape(len(ids), groups, self.width // groups) * scale[:, :, None]
        values *= np.float32(self.factor)
        return np.asarray(values.reshape(len(ids), self.width))

    def max_abs(self) -> float:
        """The largest magnitude that a row can hold: max |scale| * 2^(bits-1) * factor, rounded as `lookup` rounds.

        It fixes the range of the quantised input that these rows feed. All scales are read, no code is: a table that
        never uses its lowest code stays below. Raises QuantError where a scale is not finite.
        """
        largest = np.maximum(self.scale.max(), -self.scale.min())
        bound = float(largest * np.float32(2 ** (self.bits - 1)) * np.float32(self.factor))
        if not math.isfinite(bound):
            raise QuantError(f"scale of the table is up to {largest}, which gives no finite range; make it again")
        return bound

    def save(self, path: Path) -> None:
        """Write one safetensors file, atomically and straight from the arrays; a table that maps `path` stays valid."""
        partial = path.with_name(path.name + ".partial")
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in _TENSORS}
        numbers = {"bits": str(self.bits), "width": str(self.width), "factor": repr(float(self.factor))}
        save_file(tensors, partial, metadata={"kind": KIND, "schema_version": SCHEMA_VERSION, **numbers})
        os.replace(partial, path)

    @staticmethod
    def load(path: Path) -> PackedTable:
        """Open a table without reading it; its arrays are read-only and memory-mapped.

        Raises TableFileError naming file and field for one that is absent, damaged, of another kind or inconsistent.
        """
        try:
            # torch maps a file; safetensors' numpy side reads it into memory.
            with safe_open(path, framework="pt", device="cpu") as file:
                metadata = file.metadata() or {}
                if metadata.get("kind") != KIND or metadata.get("schema_version") != SCHEMA_VERSION:
                    raise TableFileError(f"{path} is no packed table of schema {SCHEMA_VERSION}; export it again")
                if set(file.keys()) != set(_TENSORS):
                    raise TableFileError(f"{path} holds the tensors {sorted(file.keys())}, not {sorted(_TENSORS)}")
                codes, scale = (_read_only(path, name, file.get_tensor(name)) for name in _TENSORS)
            bits, width = (_number(path, metadata, name, int) for name in ("bits", "width"))
            return PackedTable(codes, scale, bits, width, _number(path, metadata, "factor", float))
        except (OSError, SafetensorError) as error:
            raise TableFileError(f"{path} cannot be read as a safetensors file ({error}); export it again") from error
        except TableFileError:
            raise
        except QuantError as error:
            raise TableFileError(f"{path}: {error}; export it again") from error


def _check_array(name: str, array: np.ndarray, dtype: np.dtype[Any]) -> None:
    if array.dtype != dtype or array.ndim != 2 or 0 in array.shape:
        raise QuantError(f"{name} are {array.dtype} {list(array.shape)}; {dtype} with two dimensions above 0 is needed")


def _read_only(path: Path, name: str, tensor: torch.Tensor) -> np.ndarray:
    try:
        array: np.ndarray = tensor.numpy()
    except TypeError as error:
        raise TableFileError(f"{path}: {name} are {tensor.dtype}, which no table has; export it again") from error
    array.flags.writeable = False
    return array


def _number(path: Path, metadata: Mapping[str, str], name: str, kind: type[Any]) -> Any:
    try:
        return kind(metadata.get(name, ""))
    except ValueError as error:
        raise TableFileError(f"{path}: {name} is {metadata.get(name)!r}, not a number; export it again") from error
