"""Random checkpoints with the dimensions and files of the real models, for work on size and speed.

Their numbers mean nothing; their names, shapes, types and files are those of the originals. The values of a tensor
depend on the seed and its name alone, so a partial checkpoint holds the same ones as a whole one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file

from hyco_npu.family.real_models import GENERATION_CONFIG, REAL_MODELS, Codes, Normal, TensorSpec
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_SHARD_BYTES = 5_000_000_000
"""One shard is built in memory, so this is about the peak as well."""
_CHUNK = 1 << 22


@dataclass(frozen=True)
class RandomCheckpoint:
    """What was written: `files` are names inside `folder`, `size_bytes` their total."""

    folder: Path
    files: tuple[str, ...]
    tensor_count: int
    size_bytes: int


def write_random_checkpoint(
    like: str, out: Path, tensors: str | None = None, seed: int = 0, force: bool = False
) -> RandomCheckpoint:
    """Write a checkpoint like one of REAL_MODELS into the new folder `out`.

    `tensors` is a regex that keeps only the tensors whose names it finds ("embed_tokens" keeps a 50 GB verifier to its
    1.5 GB table). `force` replaces an earlier checkpoint. Nothing is left behind on failure. Raises UsageError for
    wrong arguments, HycoError where the disk is too full.
    """
    if like not in REAL_MODELS:
        raise UsageError(f"no real model is called {like!r}; known are {', '.join(REAL_MODELS)}")
    if seed < 0:
        raise UsageError(f"the seed is {seed}; give a number of 0 or more")
    _check_target(out, force)
    model = REAL_MODELS[like]()
    specs = _selected(model.tensors, tensors, like)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        _check_space(partial, specs)
        _write_json(partial / "config.json", model.config)
        _write_json(partial / "generation_config.json", GENERATION_CONFIG)
        _write_weights(partial, specs, seed)
        _move_into_place(partial, out)
    except OSError as error:
        raise HycoError(f"{out}: cannot be written ({error}); choose a folder where you may write") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = sorted(path.name for path in out.iterdir())
    size_bytes = sum((out / name).stat().st_size for name in files)
    return RandomCheckpoint(out, tuple(files), len(specs), size_bytes)


def random_tensor(spec: TensorSpec, seed: int) -> torch.Tensor:
    """The tensor of `spec`, determined by `seed` and its name."""
    generator = np.random.Generator(np.random.SFC64([seed, zlib.crc32(spec.name.encode())]))
    tensor = torch.empty(spec.shape, dtype=spec.dtype)
    flat = tensor.view(-1)
    # Chunks keep the float32 draws small beside a 1 GB tensor.
    for part in flat.split(_CHUNK):
        part.copy_(torch.from_numpy(_draw(spec, generator, len(part))))
    return tensor


def _draw(spec: TensorSpec, generator: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[Any]]:
    if isinstance(spec.fill, Codes):
        table = _code_bytes(spec.fill.bits)
        return table[generator.integers(0, len(table), count, dtype=np.uint8)]
    if isinstance(spec.fill, Normal):
        return generator.standard_normal(count, dtype=np.float32) * np.float32(spec.fill.std)
    low, high = spec.fill.low, spec.fill.high
    return generator.random(count, dtype=np.float32) * np.float32(high - low) + np.float32(low)


@cache
def _code_bytes(bits: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Every byte whose packed codes all avoid the lowest one: 255 of 8 bits, 15^2 of 4, 3^4 of 2."""
    if bits == 8:
        return np.arange(-127, 128, dtype=np.int8)
    values = np.arange(256, dtype=np.uint8)
    fields = [(values >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    # Stored codes are offset by 2^(bits-1), so the lowest is 0.
    return values[np.all(np.stack(fields) > 0, axis=0)]


def _selected(specs: Sequence[TensorSpec], pattern: str | None, like: str) -> list[TensorSpec]:
    if pattern is None:
        return list(specs)
    try:
        selected = [spec for spec in specs if re.search(pattern, spec.name)]
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression ({error})") from error
    if not selected:
        raise UsageError(f"no tensor of {like} matches {pattern!r}; its first is {specs[0].name}")
    return selected


def _check_target(out: Path, force: bool) -> None:
    if not (out.exists() or out.is_symlink()):
        return
    if not force:
        raise UsageError(f"{out}: exists already; choose another folder or allow replacing it with --force")
    # Replacing deletes: only what is a checkpoint, or nothing at all, may go.
    if out.is_symlink() or not out.is_dir() or not ((out / "config.json").exists() or not any(out.iterdir())):
        raise UsageError(f"{out}: is no checkpoint folder, so --force does not replace it; choose another folder")


def _check_space(folder: Path, specs: Sequence[TensorSpec]) -> None:
    needed, free = sum(spec.size_bytes for spec in specs), shutil.disk_usage(folder).free
    if needed > free:
        raise HycoError(f"{folder}: the checkpoint needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def _shards(specs: Sequence[TensorSpec]) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        if shards[-1] and filled + spec.size_bytes > MAX_SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.size_bytes
    return shards


def _write_weights(folder: Path, specs: Sequence[TensorSpec], seed: int) -> None:
    shards = _shards(specs)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        save_file({spec.name: random_tensor(spec, seed) for spec in shard}, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys((spec.name for spec in shard), name)
    if len(shards) > 1:
        total = sum(spec.size_bytes for spec in specs)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _move_into_place(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
        return
    old = out.with_name(f"{partial.name}.old")
    out.rename(old)
    try:
        partial.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)
