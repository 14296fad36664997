"""config.json and generation_config.json, and the tokens that end a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from export.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"


class Vocabulary(Protocol):
    """What is needed of a tokenizer; transformers' tokenizers have it."""

    @property
    def eos_token_id(self) -> int | None: ...

    def get_vocab(self) -> Mapping[str, int]: ...


def read_config(folder: Path, *model_types: str) -> dict[str, Any]:
    """The configuration of a checkpoint whose `model_type` is one of `model_types`, or any where none are named.

    Raises CheckpointError where config.json is absent, not a JSON object, or of another model type.
    """
    path = folder / CONFIG_FILE
    config = _read_object(path)
    found = config.get("model_type")
    if model_types and found not in model_types:
        raise CheckpointError(f"{path}: model_type is {found!r}, expected {' or '.join(repr(t) for t in model_types)}")
    return config


@dataclass(frozen=True)
class StopSet:
    """The tokens after which nothing more may be written; sorted, unique, at least one."""

    token_ids: tuple[int, ...]

    def __contains__(self, token_id: int) -> bool:
        return token_id in self.token_ids


def read_stop_set(folder: Path, vocabulary: Vocabulary | None = None, stop_strings: Sequence[str] = ()) -> StopSet:
    """Union of every end that a checkpoint names: honouring one of three lets the text run on.

    Sources: `eos_token_id` (an id, a list or absent) of config.json, of its text_config and of generation_config.json
    (may be absent), the vocabulary's own eos, and `stop_strings`, each of which must be a token of the vocabulary.
    Raises CheckpointError for an id that is none, a stop string that is no token, and where no end is named at all.
    """
    config_path, generation_path = folder / CONFIG_FILE, folder / GENERATION_CONFIG_FILE
    config = _read_object(config_path)
    text_config = config.get("text_config")
    vocab_size = (text_config if isinstance(text_config, dict) else config).get("vocab_size")
    ids = _end_ids(config_path, config, vocab_size)
    if isinstance(text_config, dict):
        ids |= _end_ids(config_path, text_config, vocab_size)
    if generation_path.exists():
        ids |= _end_ids(generation_path, _read_object(generation_path), vocab_size)
    if vocabulary is not None and vocabulary.eos_token_id is not None:
        ids.add(vocabulary.eos_token_id)
    ids |= _string_ids(folder, vocabulary, stop_strings)
    if not ids:
        raise CheckpointError(
            f"{config_path}: names no eos_token_id, nor does {GENERATION_CONFIG_FILE}: a text would never end"
        )
    return StopSet(tuple(sorted(ids)))


def _end_ids(path: Path, config: Mapping[str, Any], vocab_size: object) -> set[int]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        # bool is an int for Python, and `true` is no token.
        if type(token_id) is not int or token_id < 0:
            raise CheckpointError(f"{path}: eos_token_id holds {token_id!r}, which is no token id")
        if isinstance(vocab_size, int) and token_id >= vocab_size:
            raise CheckpointError(f"{path}: eos_token_id holds {token_id}, the vocabulary has {vocab_size} tokens")
    return set(ids)


def _string_ids(folder: Path, vocabulary: Vocabulary | None, stop_strings: Sequence[str]) -> set[int]:
    if not stop_strings:
        return set()
    if vocabulary is None:
        raise CheckpointError(f"{folder}: stop strings {list(stop_strings)} need a tokenizer, none was given")
    table = vocabulary.get_vocab()
    absent = [text for text in stop_strings if text not in table]
    if absent:
        raise CheckpointError(
            f"{folder}: the stop string {absent[0]!r} is no token of the vocabulary; name one of its special tokens"
        )
    return {table[text] for text in stop_strings}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: absent; a checkpoint folder holds it beside the weights") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); fetch the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, expected a JSON object")
    return value
