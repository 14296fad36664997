"""Which files of a folder hold which tensors: one `model.safetensors`, or shards with an index.

The index decides where a tensor lies. It is not believed blindly: shards that it names must exist, they must hold what
it promises, and no weight file beside them may hold a tensor that it does not know (a head left out of the index would
otherwise stay at random values without a word).
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

from export.checkpoint.header import TensorEntry, read_header
from export.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_log = logging.getLogger(__name__)


def scan(folder: Path, only: str | None = None) -> dict[str, tuple[Path, TensorEntry]]:
    """Tensor name -> (file, header entry) for a checkpoint folder.

    `only` is a regex: just the tensors that it finds are looked for, and shards without one need not be there (a 50 GB
    verifier of which one shard was fetched). Raises CheckpointError as the module text says.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give the folder that holds {SINGLE_FILE} or its shards")
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise CheckpointError(f"{folder}: holds both {SINGLE_FILE} and {INDEX_FILE}; remove the one that is not meant")
    if index.exists():
        weight_map = read_index(folder)
    elif single.exists():
        weight_map = dict.fromkeys(read_header(single), SINGLE_FILE)
    else:
        found = ", ".join(sorted(path.name for path in folder.glob("*.safetensors"))) or "no .safetensors file"
        raise CheckpointError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there (found {found})")
    if only is not None:
        wanted = {name: file for name, file in weight_map.items() if re.search(only, name)}
        return _locate(folder, wanted)
    located = _locate(folder, weight_map)
    _reject_unlisted(folder, weight_map)
    return located


def read_index(folder: Path) -> dict[str, str]:
    """The `weight_map` of a sharded checkpoint: tensor name -> file name. A damaged index is a CheckpointError."""
    path = folder / INDEX_FILE
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); fetch the file again") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: has no weight_map; not a safetensors index, or damaged")
    for name, file in weight_map.items():
        if not isinstance(file, str) or "/" in file or "\\" in file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: places tensor {name!r} in {file!r}; expected a .safetensors file of that folder"
            )
    return weight_map


def _locate(folder: Path, weight_map: dict[str, str]) -> dict[str, tuple[Path, TensorEntry]]:
    headers: dict[str, dict[str, TensorEntry]] = {}
    for name, file in weight_map.items():
        if file not in headers:
            if not (folder / file).exists():
                raise CheckpointError(
                    f"{folder / file}: this shard is absent, but {INDEX_FILE} places {name!r} in it; fetch the shard"
                )
            headers[file] = read_header(folder / file)
        if name not in headers[file]:
            raise CheckpointError(
                f"{folder / file}: does not hold tensor {name!r} that {INDEX_FILE} places in it; the index and the "
                "shards are of different checkpoints"
            )
    return {name: (folder / file, headers[file][name]) for name, file in weight_map.items()}


def _reject_unlisted(folder: Path, weight_map: dict[str, str]) -> None:
    known = INDEX_FILE if (folder / INDEX_FILE).exists() else SINGLE_FILE
    for path in sorted(folder.glob("*.safetensors")):
        for name in read_header(path):
            if name not in weight_map:
                raise CheckpointError(
                    f"{path}: holds tensor {name!r}, of which {known} knows nothing; fetch a complete index, or move "
                    "the file elsewhere if it is not part of this checkpoint"
                )
            if weight_map[name] != path.name:
                _log.warning("%s: a second copy of %s is ignored, the valid one is in %s", path, name, weight_map[name])
