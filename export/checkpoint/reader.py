"""A checkpoint's tensors: names, shapes and types at once, data memory-mapped, one tensor at a time when asked for."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from export.checkpoint.layout import INDEX_FILE, SINGLE_FILE, scan
from export.errors import CheckpointError
from export.hashing import sha256_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from export.checkpoint.header import TensorEntry

_LISTED = 5
"""So many tensors are named in one message; of the rest the number is given."""


class CheckpointReader:
    """A folder with `model.safetensors`, or with shards and their index.

    All headers are read and checked on opening (header.py and layout.py say what is refused); `only` is a regex that
    restricts the checkpoint to some tensors and to the shards that hold them. Raises CheckpointError.
    """

    def __init__(self, folder: Path, only: str | None = None) -> None:
        self.folder = folder
        self._tensors = scan(folder, only)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, sorted."""
        return tuple(sorted(self._tensors))

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def file(self, name: str) -> Path:
        """The file that holds the tensor."""
        return self._find(name)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        return self._find(name)[1].shape

    def dtype(self, name: str) -> torch.dtype:
        """The tensor's type as stored."""
        return self._find(name)[1].dtype

    def load(self, name: str) -> torch.Tensor:
        """The whole tensor in its stored type, as memory of its own (the file may go away afterwards)."""
        path, entry = self._find(name)
        if entry.begin == entry.end:
            return torch.empty(entry.shape, dtype=entry.dtype)
        flat = np.array(self._bytes(path, entry))
        return torch.from_numpy(flat).view(entry.dtype).reshape(entry.shape)

    def mapped(self, name: str) -> np.ndarray[Any, Any]:
        """The whole tensor as a read-only array that maps the file: nothing is read before it is used.

        The file must stay as it is meanwhile. Raises CheckpointError for a type that numpy lacks (bfloat16, float8).
        """
        path, entry = self._find(name)
        try:
            dtype = torch.empty(0, dtype=entry.dtype).numpy().dtype
        except TypeError as error:
            raise CheckpointError(
                f"{path}: tensor {name!r} of {entry.dtype} cannot be mapped, numpy has no such type; load it"
            ) from error
        if entry.begin == entry.end:
            return np.empty(entry.shape, dtype)
        return self._bytes(path, entry).view(dtype).reshape(entry.shape)

    def rows(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` (int64 [n]) of a tensor [rows, ...] -> [n, ...] in its stored type; only these rows are read.

        An id below 0 or past the last row is a CheckpointError: it never wraps.
        """
        path, entry = self._find(name)
        if not entry.shape:
            raise CheckpointError(f"{path}: tensor {name!r} is a scalar and has no rows")
        wrong = ids[(ids < 0) | (ids >= entry.shape[0])]
        if wrong.numel():
            raise CheckpointError(f"{path}: tensor {name!r} has rows 0..{entry.shape[0] - 1}, not {int(wrong[0])}")
        if entry.begin == entry.end or not len(ids):
            return torch.empty(len(ids), *entry.shape[1:], dtype=entry.dtype)
        table = self._bytes(path, entry).reshape(entry.shape[0], -1)
        # Fancy indexing copies: only the pages of these rows are touched.
        picked = np.ascontiguousarray(table[ids.numpy()])
        return torch.from_numpy(picked.reshape(-1)).view(entry.dtype).reshape(len(ids), *entry.shape[1:])

    def require(self, expected: Mapping[str, Sequence[int]], ignore: Sequence[str] = ()) -> None:
        """Check that exactly the tensors of `expected` (name -> shape) are there; names found by `ignore` may be more.

        Raises CheckpointError naming file and tensor for what is missing, misshapen or unexpected.
        """
        missing = [name for name in expected if name not in self._tensors]
        if missing:
            files = sorted({path.name for path, _ in self._tensors.values()}) or [SINGLE_FILE]
            where = self.folder / (files[0] if len(files) == 1 else INDEX_FILE)
            raise CheckpointError(
                f"{where}: {_count(missing, 'tensor')} missing: {_listed(missing)}; "
                "fetch the checkpoint again, or check that config.json belongs to it"
            )
        for name, shape in expected.items():
            if self.shape(name) != tuple(shape):
                raise CheckpointError(
                    f"{self.file(name)}: tensor {name!r} has shape {list(self.shape(name))}, but config.json asks for "
                    f"{list(shape)}; weights and configuration are of different models"
                )
        extra = [n for n in self.names if n not in expected and not any(re.search(pattern, n) for pattern in ignore)]
        if extra:
            raise CheckpointError(
                f"{self.file(extra[0])}: {_count(extra, 'tensor')} that config.json has no place for: {_listed(extra)}"
            )

    @cached_property
    def sha256(self) -> str:
        """Hash of the checkpoint: over name, size and sha256 of config.json, index and every weight file in use."""
        files = {path for path, _ in self._tensors.values()}
        files |= {self.folder / name for name in ("config.json", INDEX_FILE) if (self.folder / name).exists()}
        digest = hashlib.sha256()
        for path in sorted(files):
            digest.update(f"{path.name}\0{path.stat().st_size}\0{sha256_file(path)}\n".encode())
        return digest.hexdigest()

    def _find(self, name: str) -> tuple[Path, TensorEntry]:
        if name not in self._tensors:
            raise CheckpointError(f"{self.folder}: has no tensor {name!r} among its {len(self._tensors)}")
        return self._tensors[name]

    @staticmethod
    def _bytes(path: Path, entry: TensorEntry) -> np.ndarray[Any, np.dtype[np.uint8]]:
        size_bytes = entry.end - entry.begin
        try:
            return np.memmap(path, dtype=np.uint8, mode="r", offset=entry.begin, shape=(size_bytes,))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: tensor {entry.name!r} cannot be read any more ({error})") from error


def _count(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(repr(name) for name in names[:_LISTED]) + rest
