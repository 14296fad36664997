"""Which weight of the SLM's graphs takes which codes of the checkpoint, and in what form they are stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch

from export.checkpoint.slm_tensors import HEAD, linear_shapes
from export.errors import ExportError
from export.passes.chunk_head import chunk_bounds
from export.passes.store_codes import CodedWeight, Form

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from export.checkpoint.slm import SlmCheckpoint

TwoBit = Literal["int4", "native", "nbits"]
"""How 2-bit codes are stored: in 4 bits, in 2 as HTP's own weights, or in 2 as MatMulNBits."""
HEAD_COLUMNS = 4096
"""Columns of a chunk of the output layer: with 32 rows and 2-bit codes a third faster than 14,336 by the estimate."""
HEAD_KIND = "head"
_FORMS: dict[int, Form] = {4: "int4", 8: "int8"}


def coded_weights(
    checkpoint: SlmCheckpoint, keep: np.ndarray, two_bit: TwoBit, head_bits: int | None = None
) -> dict[str, CodedWeight]:
    """Weight name in the graph -> its codes; the output layer's are those of the token ids `keep`, by chunk.

    `head_bits` (2, 4 or 8) is the width in which the output layer's codes are stored; None leaves it to `two_bit`.
    Raises ExportError where it is narrower than the codes.
    """
    weights: dict[str, CodedWeight] = {}
    for module, shape in linear_shapes(checkpoint.config).items():
        bits = checkpoint.bits_of(module)
        if module == HEAD:
            if bits is None:
                raise ExportError(f"{checkpoint.reader.folder}: the output layer has no codes; it cannot be exported")
            weights |= _head(checkpoint, torch.tensor(keep), bits, _head_form(bits, two_bit, head_bits))
        elif bits is not None:
            read = partial(_read, checkpoint, module, None)
            weights[f"{module}.weight"] = CodedWeight(shape, bits, _form(bits, two_bit), read)
    return weights


def kind_of_weight(name: str) -> str:
    """What a report counts a weight under: "attention", "mlp", "per_layer" or "head"."""
    if name.startswith(HEAD):
        return HEAD_KIND
    if ".self_attn." in name:
        return "attention"
    return "mlp" if ".mlp." in name else "per_layer"


def _form(bits: int, two_bit: TwoBit) -> Form:
    return two_bit if bits == 2 else _FORMS[bits]


def _head_form(bits: int, two_bit: TwoBit, head_bits: int | None) -> Form:
    if head_bits is None:
        return _form(bits, two_bit)
    if head_bits < bits:
        raise ExportError(
            f"--head-bits {head_bits} cannot hold the {bits}-bit codes of the output layer; give {bits} or more"
        )
    if head_bits == 2:
        return "native" if two_bit == "int4" else two_bit
    return _FORMS[head_bits]


def _head(checkpoint: SlmCheckpoint, keep: torch.Tensor, bits: int, form: Form) -> dict[str, CodedWeight]:
    columns = checkpoint.config.hidden_size
    chunks: dict[str, CodedWeight] = {}
    for index, (start, end) in enumerate(chunk_bounds(len(keep), HEAD_COLUMNS)):
        read: Callable[[], tuple[torch.Tensor, torch.Tensor]] = partial(_read, checkpoint, HEAD, keep[start:end])
        chunks[f"{HEAD}.weight.{index}"] = CodedWeight((end - start, columns), bits, form, read)
    return chunks


def _read(checkpoint: SlmCheckpoint, module: str, rows: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    stored = checkpoint.weight(module, rows)
    return stored.codes, stored.scale[:, 0]
