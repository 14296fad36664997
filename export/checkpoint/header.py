"""The header of one safetensors file, checked against the file's real size before any tensor is believed.

Layout: 8 bytes little-endian header length n, n bytes of JSON {name: {dtype, shape, data_offsets}}, then the data. The
checks are our own, because a message must name the file and say what to do, and the library's texts change.
Source: the format description of huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from export.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file; `begin` and `end` are byte offsets from the start of the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """All tensors of one safetensors file by name, without reading their data.

    Raises CheckpointError, naming the file, where it is absent, truncated, longer than its header says, not safetensors
    at all, or where a tensor's shape, type and place in the file contradict each other.
    """
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(LENGTH_BYTES)
            length = int.from_bytes(head, "little")
            _check_preamble(path, head, size_bytes)
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror or error}); fetch the file again or check its permissions"
        ) from error
    entries = _parse(path, text)
    _check_coverage(path, entries, LENGTH_BYTES + length, size_bytes)
    return {entry.name: entry for entry in entries}


def _check_preamble(path: Path, head: bytes, size_bytes: int) -> None:
    if size_bytes == 0:
        raise CheckpointError(f"{path}: the file is empty; the download never started, fetch it again")
    if size_bytes < LENGTH_BYTES:
        raise CheckpointError(f"{path}: {size_bytes} bytes are too few for a safetensors header; fetch it again")
    length = int.from_bytes(head, "little")
    if length > MAX_HEADER_BYTES:
        # Only now may the bytes be read as text: a true header of 60 bytes also begins with "<".
        if head.startswith(b"version "):
            raise CheckpointError(f"{path}: a Git LFS pointer, not the weights; run `git lfs pull` in that repository")
        if head.lstrip().startswith(b"<"):
            raise CheckpointError(f"{path}: an HTML or XML page, not safetensors; the download met an error or login")
        raise CheckpointError(
            f"{path}: claims a header of {length} bytes, more than the format allows ({MAX_HEADER_BYTES}); "
            "not a safetensors file, or a damaged one"
        )
    if LENGTH_BYTES + length > size_bytes:
        raise CheckpointError(
            f"{path}: truncated inside its header ({size_bytes} bytes, the header alone needs "
            f"{LENGTH_BYTES + length}); fetch it again"
        )


def _parse(path: Path, text: bytes) -> list[TensorEntry]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: its header is not JSON ({error}); not a safetensors file, or damaged"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is a {type(header).__name__}, not an object; not a safetensors file")
    start = LENGTH_BYTES + len(text)
    return [_entry(path, name, fields, start) for name, fields in header.items() if name != "__metadata__"]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _entry(path: Path, name: str, fields: Any, start: int) -> TensorEntry:
    if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
        raise CheckpointError(f"{path}: tensor {name!r} lacks dtype, shape or data_offsets in the header; damaged file")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{path}: tensor {name!r} has the unknown type {dtype!r}; known are {', '.join(DTYPES)}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{path}: tensor {name!r} has shape {shape!r} and offsets {offsets!r}; damaged header")
    begin, end = offsets
    size_bytes = math.prod(shape) * DTYPES[dtype].itemsize
    if end - begin != size_bytes:
        raise CheckpointError(
            f"{path}: tensor {name!r} of {dtype} {shape} needs {size_bytes} bytes, but its place in the file has "
            f"{end - begin}; damaged header"
        )
    return TensorEntry(name, DTYPES[dtype], tuple(shape), start + begin, start + end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_coverage(path: Path, entries: list[TensorEntry], start: int, size_bytes: int) -> None:
    position = start
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            raise CheckpointError(
                f"{path}: tensor {entry.name!r} starts at byte {entry.begin}, the one before ends at {position}; "
                "damaged header"
            )
        if entry.end > size_bytes:
            raise CheckpointError(
                f"{path}: truncated, {size_bytes} bytes of at least {entry.end}; the first tensor cut off is "
                f"{entry.name!r}; fetch the file again"
            )
        position = entry.end
    if position != size_bytes:
        raise CheckpointError(
            f"{path}: {size_bytes - position} bytes follow the last tensor; two files run together or a damaged "
            "download, fetch it again"
        )
