"""What an export reads: the head, its verifier, the keep set, and the states that it is calibrated and checked on."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from calibration.errors import CalibrationError
from calibration.keepset import KeepSet, count_tokens, most_frequent
from calibration.prompts import Prompt, encode_prompt, read_prompts
from calibration.ranges import Ranges
from calibration.verifier import load_verifier
from export.checkpoint.config import read_stop_set
from export.checkpoint.layout import INDEX_FILE, read_index
from export.checkpoint.mtp import read_mtp_checkpoint
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.source import CONFIG_FILES, TOKENIZER_FILES, CheckpointSource, resolve_checkpoint
from export.checkpoint.verifier import TABLE_PATTERN, VerifierEmbeddings
from export.errors import ExportError
from export.hashing import sha256_file
from export.mtp.options import DEFAULT_KEEP_SIZE, SYNTHETIC
from export.mtp.states import PromptStates, halved, states_of_prompts, synthetic_states
from quant.errors import UsageError
from quant.table import EmbeddingTable, build_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import Gemma4ForCausalLM, PreTrainedTokenizerBase

    from calibration.states import HeadState
    from export.checkpoint.mtp import MtpCheckpoint
    from export.mtp.options import MtpExportOptions

_WANTED_FILES = (*CONFIG_FILES, *TOKENIZER_FILES)
_SYNTHETIC_STATES = 2
_CHECKED_STATES = 8
_SMALL_VOCABULARY_SHARE = 0.75
_MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Sources:
    """Opened checkpoints; those of the verifier are None where none was named (--no-table needs none)."""

    head_source: CheckpointSource
    head: MtpCheckpoint
    verifier_source: CheckpointSource | None
    embeddings: VerifierEmbeddings | None
    tokenizer: PreTrainedTokenizerBase | None
    tokenizer_folder: Path | None


@dataclass(frozen=True)
class Evidence:
    """States for calibration and for checks, ready-made ranges if given, and where they come from.

    `why_synthetic` tells why no prompts were run, where none were.
    """

    calibration: list[HeadState]
    held_out: list[HeadState]
    ranges: Ranges | None
    source: str
    sequences: list[list[int]]
    why_synthetic: str | None


def open_sources(options: MtpExportOptions) -> Sources:
    """Open and check the head and, for its table, the verifier."""
    head_source = resolve_checkpoint(options.checkpoint, _WANTED_FILES)
    head = read_mtp_checkpoint(head_source.folder)
    verifier_source = embeddings = None
    if options.verifier is not None:
        verifier_source = resolve_checkpoint(options.verifier, _WANTED_FILES, TABLE_PATTERN)
        embeddings = VerifierEmbeddings(verifier_source.folder)
        embeddings.require_backbone(head.config.backbone_hidden_size)
        if embeddings.vocab_size != head.config.vocab_size:
            raise ExportError(
                f"the verifier has {embeddings.vocab_size} tokens, the head {head.config.vocab_size}: not a pair"
            )
    folders = [source.folder for source in (head_source, verifier_source) if source is not None]
    folder = next((f for f in folders if (f / TOKENIZER_FILES[0]).is_file()), None)
    return Sources(head_source, head, verifier_source, embeddings, _tokenizer(folder), folder)


def gather_evidence(sources: Sources, options: MtpExportOptions, progress: Callable[[str], None]) -> Evidence:
    """States to calibrate on and to check on; synthetic ones where the verifier cannot run, and marked so."""
    ranges = _given_ranges(options)
    reason = "synthetic states were asked for" if options.calibration == SYNTHETIC else _why_not_runnable(sources)
    if reason is not None:
        if options.calibration not in (None, SYNTHETIC) and ranges is None:
            raise CalibrationError(
                f"--calibration {options.calibration}: prompts cannot be run, because {reason}; give a file of ranges, "
                f'or "{SYNTHETIC}" for size and speed work'
            )
        states = synthetic_states(sources.head.config, options.window, 2 * _SYNTHETIC_STATES, options.seed)
        source = ranges.source if ranges else f"synthetic:seed{options.seed}"
        held_out = [halved(state) for state in states[_SYNTHETIC_STATES:]]
        return Evidence(states[:_SYNTHETIC_STATES], held_out, ranges, source, [], reason)
    assert sources.verifier_source is not None
    assert sources.tokenizer is not None
    verifier = load_verifier(sources.verifier_source.folder)
    prompts = options.default_prompts if ranges or options.calibration is None else Path(options.calibration)
    progress("verifier answers calibration prompts")
    seen = _run_prompts(verifier, sources.tokenizer, read_prompts(prompts), options.window)
    checked = read_prompts(options.held_out_prompts)
    checked = checked[:: max(1, len(checked) // _CHECKED_STATES)][:_CHECKED_STATES]
    unseen = _run_prompts(verifier, sources.tokenizer, checked, options.window)
    source = ranges.source if ranges else f"prompts:{sha256_file(prompts)}"
    step = max(1, len(unseen.states) // _CHECKED_STATES)
    held_out = [halved(state) for state in unseen.states[::step][:_CHECKED_STATES]]
    return Evidence(seen.states, held_out, ranges, source, seen.sequences, None)


def given_keep_set(sources: Sources, options: MtpExportOptions) -> KeepSet | None:
    """The keep set of a file; None where a number or nothing was asked for."""
    wanted = options.keep_set
    if wanted is None or wanted.isdecimal():
        return None
    return KeepSet.load(Path(wanted), sources.head.config.vocab_size, _stop_ids(sources))


def counted_keep_set(sources: Sources, options: MtpExportOptions, sequences: list[list[int]]) -> tuple[KeepSet, str]:
    """The most frequent tokens of the calibration texts, with all special and stop tokens, and what was counted."""
    vocabulary = sources.head.config.vocab_size
    size = keep_set_size(sources, options)
    if not sequences and sources.tokenizer is not None:
        prompts = read_prompts(options.default_prompts)
        sequences = [encode_prompt(sources.tokenizer, prompt) for prompt in prompts]
    counts = count_tokens(sequences, vocabulary)
    origin = f"{size} most frequent" if sequences else f"{size} lowest ids: no tokenizer to count prompts with"
    return most_frequent(counts, size, _required_ids(sources), vocabulary), origin


def keep_set_size(sources: Sources, options: MtpExportOptions) -> int:
    """How many tokens to keep by count. Raises UsageError for a number that cannot be."""
    vocabulary, required = sources.head.config.vocab_size, len(_required_ids(sources))
    size = int(options.keep_set) if options.keep_set is not None else default_keep_size(vocabulary)
    if not required <= size <= vocabulary:
        raise UsageError(f"--keep-set {size} must lie between {required} required and {vocabulary} tokens")
    return size


def _stop_ids(sources: Sources) -> tuple[int, ...]:
    folder = sources.verifier_source.folder if sources.verifier_source else sources.head_source.folder
    return read_stop_set(folder, sources.tokenizer).token_ids


def _required_ids(sources: Sources) -> set[int]:
    special = sources.tokenizer.all_special_ids if sources.tokenizer is not None else ()
    return {*_stop_ids(sources), *special}


def default_keep_size(vocabulary: int) -> int:
    """86,016 tokens, or three quarters of a vocabulary that is smaller than that."""
    return DEFAULT_KEEP_SIZE if vocabulary > DEFAULT_KEEP_SIZE else int(vocabulary * _SMALL_VOCABULARY_SHARE)


def table_and_embed(
    sources: Sources, keep: KeepSet, seed: int
) -> tuple[EmbeddingTable | None, Callable[[int], np.ndarray]]:
    """The 8-bit CPU table of the keep set and its lookup; without a verifier, random rows for size work."""
    if sources.embeddings is not None:
        table = build_table(sources.embeddings.chunks(torch.from_numpy(np.array(keep.token_ids))))
        return table, lambda token_id: table.lookup(token_id).numpy()
    width = sources.head.config.backbone_hidden_size

    def random_row(token_id: int) -> np.ndarray:
        return np.random.default_rng([seed, token_id]).standard_normal(width).astype(np.float32)

    return None, random_row


def copy_tokenizer(sources: Sources, path: Callable[[str], Path]) -> None:
    """Copy the tokenizer's files into the bundle."""
    if sources.tokenizer_folder is None:
        return
    for name in TOKENIZER_FILES:
        if (sources.tokenizer_folder / name).is_file():
            shutil.copyfile(sources.tokenizer_folder / name, path(f"tokenizer/{name}"))


def _given_ranges(options: MtpExportOptions) -> Ranges | None:
    if options.calibration is None or options.calibration == SYNTHETIC:
        return None
    path = Path(options.calibration)
    if not path.is_file():
        raise UsageError(f"--calibration {path}: no such file; give ranges (.json), prompts (.jsonl) or synthetic")
    return Ranges.load(path) if path.suffix == ".json" else None


def _why_not_runnable(sources: Sources) -> str | None:
    """Why prompts cannot be run here; None where the verifier is whole, has a tokenizer and fits into memory."""
    if sources.verifier_source is None:
        return "no verifier is given"
    if sources.tokenizer is None:
        return "there is no tokenizer beside the head or its verifier"
    folder = sources.verifier_source.folder
    shards = set(read_index(folder).values()) if (folder / INDEX_FILE).is_file() else set()
    # Of a verifier on the hub only the table's shard was fetched.
    if not all((folder / shard).is_file() for shard in shards):
        return "only the shard of the embedding table is here"
    reader = CheckpointReader(folder)
    if not any(".layers." in name for name in reader.names):
        return "the verifier's checkpoint holds only its embedding table"
    needed = 4 * sum(math.prod(reader.shape(name)) for name in reader.names)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory * _MEMORY_SHARE:
        return f"in float32 the verifier takes {needed / 1e9:.0f} GB of this machine's {memory / 1e9:.0f} GB"
    return None


def _run_prompts(
    verifier: Gemma4ForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], window: int
) -> PromptStates:
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    return states_of_prompts(verifier, encoded, window)


def _tokenizer(folder: Path | None) -> PreTrainedTokenizerBase | None:
    if folder is None:
        return None
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return tokenizer
