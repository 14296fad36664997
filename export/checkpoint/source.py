"""Where a checkpoint comes from: a folder, or a model id on the Hugging Face hub.

From the hub only the named files are fetched (an interrupted download resumes), and the commit is recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from export.checkpoint.layout import INDEX_FILE, SINGLE_FILE, read_index
from export.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# The hub client raises its HTTP library's own error when a connection breaks; which library that is, varies by version.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
_HUB_FAILURES = (HfHubHTTPError, _HTTP_ERROR, OSError, ValueError)


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint on this machine: `origin` as the user wrote it, `revision` the hub's commit (None for a folder)."""

    folder: Path
    origin: str
    revision: str | None


def resolve_checkpoint(source: str, files: Sequence[str] = CONFIG_FILES, tensors: str = "") -> CheckpointSource:
    """An existing folder, or the local copy of a hub id "org/name".

    From the hub come `files` (glob patterns), the weight index, and the weight files that hold a tensor whose name the
    regex `tensors` finds: all of them by default, one shard of a 50 GB verifier for "embed_tokens". A folder is taken
    as it is. Raises CheckpointError where neither works; an existing folder wins over an id.
    """
    if not source:
        raise CheckpointError("no checkpoint was named; give a folder or a Hugging Face id of the form org/name")
    folder = Path(source).expanduser()
    if folder.is_dir():
        return CheckpointSource(folder, source, None)
    if folder.exists():
        raise CheckpointError(f"{source}: is a file; give the folder that holds config.json and the weights")
    if not _HUB_ID.fullmatch(source):
        raise CheckpointError(f"{source}: no such folder, and not a Hugging Face id of the form org/name")
    snapshot = _fetch(source, [*files, INDEX_FILE], None)
    # The second request is pinned to the first one's commit: the branch may move in between.
    snapshot = _fetch(source, _weight_files(snapshot, tensors), snapshot.name)
    return CheckpointSource(snapshot, source, snapshot.name)


def _weight_files(snapshot: Path, tensors: str) -> list[str]:
    if not (snapshot / INDEX_FILE).exists():
        return [SINGLE_FILE]
    return sorted({file for name, file in read_index(snapshot).items() if re.search(tensors, name)})


def _fetch(hub_id: str, patterns: list[str], revision: str | None) -> Path:
    if not patterns:
        raise CheckpointError(f"{hub_id}: its index names no tensor that is needed here; is it the right model?")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns, revision=revision))
    except _HUB_FAILURES as error:
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"{hub_id}: there is no such folder here, and as a Hugging Face id it cannot be fetched "
            f"({type(error).__name__}: {reason[0] if reason else 'no reason given'}); check the name, the network and "
            "the access to that model, or give a local folder"
        ) from error
