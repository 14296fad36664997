"""What every export reads beside its own checkpoint: vocabulary and keep set, ranges, tokenizer, a verifier."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.keepset import KeepSet, count_tokens, most_frequent
from calibration.prompts import encode_prompt, read_prompts
from calibration.ranges import Ranges
from export.checkpoint.config import CONFIG_FILE, read_config, read_stop_set
from export.checkpoint.layout import INDEX_FILE, read_index
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.source import TOKENIZER_FILES
from export.checkpoint.verifier import MODEL_TYPES
from export.errors import CheckpointError
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

DEFAULT_KEEP_SIZE = 86016
"""84 x 1024 tokens: the paper's 86K, a multiple of the chunk alignment."""
SYNTHETIC = "synthetic"
"""The word that stands for made-up inputs in place of a calibration file: for size and speed work."""
_SMALL_VOCABULARY_SHARE = 0.75
_MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Vocabulary:
    """All tokens, and those that a keep set must have: stop tokens and, of a tokenizer where there is one, others."""

    size: int
    stop_ids: tuple[int, ...]
    tokenizer: PreTrainedTokenizerBase | None

    @property
    def required_ids(self) -> set[int]:
        """Stop tokens, special tokens and byte-fallback tokens."""
        return set().union(*self.required_by_reason.values())

    @cached_property
    def required_by_reason(self) -> dict[str, set[int]]:
        """`required_ids` under "stop", "special" and "byte_fallback"; an id may have several reasons."""
        stop = set(self.stop_ids)
        if self.tokenizer is None:
            return {"stop": stop, "special": set(), "byte_fallback": set()}
        table = self.tokenizer.get_vocab()
        fallback = {table[name] for byte in range(256) if (name := f"<0x{byte:02X}>") in table}
        return {"stop": stop, "special": set(self.tokenizer.all_special_ids), "byte_fallback": fallback}


def read_vocabulary(folder: Path, size: int, tokenizer: PreTrainedTokenizerBase | None) -> Vocabulary:
    """The vocabulary with the stop set of the checkpoint at `folder`."""
    return Vocabulary(size, read_stop_set(folder, tokenizer).token_ids, tokenizer)


def vocabulary_in(folder: Path) -> Vocabulary:
    """The vocabulary of the verifier at `folder`, of which configuration and tokenizer are enough.

    Raises CheckpointError where one of them is absent or the configuration names no vocabulary.
    """
    config = read_config(folder, *MODEL_TYPES)
    text = config.get("text_config", config)
    size = text.get("vocab_size") if isinstance(text, dict) else None
    if type(size) is not int or size < 1:
        raise CheckpointError(f"{folder / CONFIG_FILE}: vocab_size is {size!r}, a number of tokens is needed")
    return read_vocabulary(folder, size, load_tokenizer(folder))


def given_keep_set(wanted: str | None, vocabulary: Vocabulary) -> KeepSet | None:
    """The keep set of the file `wanted`; None where it is a number or nothing."""
    if wanted is None or wanted.isdecimal():
        return None
    return KeepSet.load(Path(wanted), vocabulary.size, vocabulary.stop_ids)


def counted_keep_set(
    wanted: str | None, vocabulary: Vocabulary, sequences: list[list[int]], default_prompts: Path
) -> tuple[KeepSet, str]:
    """The most frequent tokens of `sequences`, with all required ones, and what was counted; `wanted` is their number.

    Without sequences, those of the default prompts are counted.
    """
    size = keep_set_size(wanted, vocabulary)
    if not sequences and vocabulary.tokenizer is not None:
        sequences = [encode_prompt(vocabulary.tokenizer, prompt) for prompt in read_prompts(default_prompts)]
    counts = count_tokens(sequences, vocabulary.size)
    origin = f"{size} most frequent" if sequences else f"{size} lowest ids: no tokenizer to count prompts with"
    return most_frequent(counts, size, vocabulary.required_ids, vocabulary.size), origin


def keep_set_size(wanted: str | None, vocabulary: Vocabulary) -> int:
    """How many tokens to keep by count. Raises UsageError for a number that cannot be."""
    required = len(vocabulary.required_ids)
    size = int(wanted) if wanted is not None else default_keep_size(vocabulary.size)
    if not required <= size <= vocabulary.size:
        raise UsageError(f"--keep-set {size} must lie between {required} required and {vocabulary.size} tokens")
    return size


def default_keep_size(vocabulary_size: int) -> int:
    """86,016 tokens, or three quarters of a vocabulary that is smaller than that."""
    if vocabulary_size > DEFAULT_KEEP_SIZE:
        return DEFAULT_KEEP_SIZE
    return int(vocabulary_size * _SMALL_VOCABULARY_SHARE)


def given_ranges(calibration: str | None) -> Ranges | None:
    """The ranges that `calibration` names (.json); None where it names prompts, nothing, or "synthetic"."""
    if calibration is None or calibration == SYNTHETIC:
        return None
    path = Path(calibration)
    if not path.is_file():
        raise UsageError(f"--calibration {path}: no such file; give ranges (.json), prompts (.jsonl) or synthetic")
    return Ranges.load(path) if path.suffix == ".json" else None


def why_not_runnable(verifier: Path) -> str | None:
    """Why the verifier at this folder cannot run here; None where it is whole and fits into memory."""
    shards = set(read_index(verifier).values()) if (verifier / INDEX_FILE).is_file() else set()
    # Of a verifier on the hub only the table's shard was fetched.
    if not all((verifier / shard).is_file() for shard in shards):
        return "only the shard of the embedding table is here"
    reader = CheckpointReader(verifier)
    if not any(".layers." in name for name in reader.names):
        return "the verifier's checkpoint holds only its embedding table"
    needed = 4 * sum(math.prod(reader.shape(name)) for name in reader.names)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory * _MEMORY_SHARE:
        return f"in float32 the verifier takes {needed / 1e9:.0f} GB of this machine's {memory / 1e9:.0f} GB"
    return None


def load_tokenizer(folder: Path | None) -> PreTrainedTokenizerBase | None:
    """The tokenizer at `folder`, from its files alone. Raises CheckpointError where there is none."""
    if folder is None:
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: holds no tokenizer that transformers can read ({error})") from error
    return tokenizer


def copy_tokenizer(folder: Path | None, path: Callable[[str], Path]) -> None:
    """Copy the tokenizer's files into the bundle."""
    for name in TOKENIZER_FILES if folder is not None else ():
        assert folder is not None
        if (folder / name).is_file():
            shutil.copyfile(folder / name, path(f"tokenizer/{name}"))
