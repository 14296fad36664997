"""Embedding rows of the keep set as an 8-bit table for the CPU: int8 codes and one float32 scale a row.

A row is what the model's own embedding layer returns, its factor sqrt(hidden_size) included, so a lookup needs no more
arithmetic than code * scale. Knows nothing of checkpoints: `export` reads the rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from quant.affine import choose_symmetric, quantize
from quant.dtypes import INT8
from quant.errors import QuantError, TableFileError, TokenIdError
from quant.granularity import PerChannel, absmax

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEMA_VERSION = "1"
_DTYPES = {"codes": torch.int8, "scale": torch.float32, "token_ids": torch.int64}


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """`codes` int8 [rows, width], `scale` float32 [rows], `token_ids` int64 [rows] rising; row = codes * scale.

    Raises QuantError for other types, shapes that do not agree, and ids that are not rising or negative.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    token_ids: torch.Tensor

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            found = getattr(self, name).dtype
            if found != dtype:
                raise QuantError(f"the table's {name} are {found}; {dtype} is needed")
        rows = self.token_ids.numel()
        if self.codes.ndim != 2 or len(self.codes) != rows or {self.scale.shape, self.token_ids.shape} != {(rows,)}:
            shapes = ", ".join(f"{name} {list(getattr(self, name).shape)}" for name in _DTYPES)
            raise QuantError(f"the table's shapes do not agree: {shapes}; codes [rows, width] and the rest [rows]")
        if rows == 0:
            raise QuantError("the table has no rows; give at least one token id")
        if int(self.token_ids[0]) < 0 or bool((self.token_ids.diff() <= 0).any()):
            raise QuantError("the table's token ids must start at 0 or above and rise without repetition")
        if not bool((torch.isfinite(self.scale) & (self.scale > 0)).all()):
            raise QuantError("the table holds a scale that is not a finite number above 0; build it again")

    @property
    def width(self) -> int:
        """Values in a row: the hidden size."""
        return self.codes.shape[1]

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, scales and ids together."""
        return sum(tensor.nbytes for tensor in (self.codes, self.scale, self.token_ids))

    def lookup(self, token_id: int) -> torch.Tensor:
        """The row of one token, float32 [width]. Raises TokenIdError for an id that the table does not hold."""
        return self.lookup_many(torch.tensor([token_id], dtype=torch.int64))[0]

    def lookup_many(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The rows of int64 `token_ids` [n], float32 [n, width], in their order.

        Raises TokenIdError naming the first id that the table does not hold (negative ones too: nothing wraps).
        """
        if token_ids.dtype != torch.int64 or token_ids.ndim != 1:
            raise QuantError(f"token ids are {token_ids.dtype} {list(token_ids.shape)}; int64 [n] is needed")
        places = torch.searchsorted(self.token_ids, token_ids).clamp_(max=len(self.token_ids) - 1)
        unknown = self.token_ids[places] != token_ids
        if bool(unknown.any()):
            raise TokenIdError(
                f"token id {int(token_ids[unknown][0])} is not among the {len(self.token_ids)} ids of the embedding "
                f"table ({int(self.token_ids[0])} to {int(self.token_ids[-1])}); only kept tokens can be looked up"
            )
        return self.codes[places].float() * self.scale[places, None]

    def save(self, path: Path) -> None:
        """Write one safetensors file; a table that is loaded from `path` stays valid."""
        partial = path.with_name(path.name + ".partial")
        tensors = {name: getattr(self, name).contiguous() for name in _DTYPES}
        save_file(tensors, partial, metadata={"schema_version": SCHEMA_VERSION, "kind": "embedding_table"})
        os.replace(partial, path)

    @staticmethod
    def load(path: Path) -> EmbeddingTable:
        """Open a table; its rows are memory-mapped and read on lookup.

        Raises TableFileError for a file that is absent, damaged, of another schema or inconsistent.
        """
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                metadata = file.metadata() or {}
                if metadata.get("kind") != "embedding_table" or metadata.get("schema_version") != SCHEMA_VERSION:
                    raise TableFileError(f"{path} is no embedding table of schema {SCHEMA_VERSION}; export it again")
                if set(file.keys()) != set(_DTYPES):
                    raise TableFileError(f"{path} holds the tensors {sorted(file.keys())}, not {sorted(_DTYPES)}")
                return EmbeddingTable(**{name: file.get_tensor(name) for name in _DTYPES})
        except (OSError, SafetensorError) as error:
            raise TableFileError(f"{path} cannot be read as a safetensors file ({error}); export it again") from error
        except TableFileError:
            raise
        except QuantError as error:
            raise TableFileError(f"{path}: {error}") from error


def build_table(rows: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> EmbeddingTable:
    """Quantise chunks of (token ids int64 [n], rows float [n, width]), in any order of ids.

    Scale = absmax / 127 of each row in float32, so an element is off by at most half a scale. Raises QuantError for no
    chunk, an id given twice, shapes that differ between chunks, and rows that are not finite.
    """
    chunks = [_quantize_chunk(ids, values) for ids, values in rows]
    if not chunks:
        raise QuantError("an embedding table needs at least one chunk of rows")
    widths = {codes.shape[1] for codes, _, _ in chunks}
    if len(widths) > 1:
        raise QuantError(f"the chunks' rows have different widths: {sorted(widths)}")
    codes, scale, token_ids = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    order = torch.argsort(token_ids, stable=True)
    ordered = token_ids[order]
    repeated = ordered[1:][ordered.diff() == 0]
    if repeated.numel():
        raise QuantError(f"token id {int(repeated[0])} was given twice; the rows of a table must be unique")
    return EmbeddingTable(codes[order], scale[order], ordered)


def embedding_scale(hidden_size: int, dtype: torch.dtype) -> float:
    """sqrt(hidden_size) as transformers' Gemma4TextScaledWordEmbedding applies it: float32, then rounded to `dtype`.

    For 1536: 39.1918 in float32, 39.25 in bfloat16, 39.1875 in float16.
    """
    return float(torch.tensor(hidden_size**0.5, dtype=torch.float32).to(dtype))


def scale_rows(weight: torch.Tensor) -> torch.Tensor:
    """What the embedding layer returns for `weight` rows [n, width]: factor and product rounded in the weight's type.

    Returned as float32 [n, width]; the source is transformers' models/gemma4/modeling_gemma4.py.
    """
    factor = torch.tensor(weight.shape[-1] ** 0.5, dtype=torch.float32).to(weight.dtype)
    return (weight * factor).float()


def _quantize_chunk(ids: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if ids.dtype != torch.int64 or ids.ndim != 1 or values.ndim != 2 or len(ids) != len(values):
        raise QuantError(
            f"ids {ids.dtype} {list(ids.shape)} and rows {list(values.shape)} do not form [n] and [n, width]"
        )
    params = choose_symmetric(absmax(values, PerChannel(0)), INT8)
    return quantize(values, params).to(torch.int8), params.scale[:, 0], ids
