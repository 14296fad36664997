"""What an export reads: the head, its verifier, the keep set, and the states that it is calibrated and checked on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from calibration.errors import CalibrationError
from calibration.prompts import Prompt, encode_prompt, read_prompts
from calibration.threads import one_thread
from calibration.verifier import load_verifier
from export.checkpoint.mtp import read_mtp_checkpoint
from export.checkpoint.source import CONFIG_FILES, TOKENIZER_FILES, CheckpointSource, resolve_checkpoint
from export.checkpoint.verifier import TABLE_PATTERN, VerifierEmbeddings
from export.errors import ExportError
from export.hashing import sha256_file
from export.mtp.states import PromptStates, halved, states_of_prompts, synthetic_states
from export.sources import (
    SYNTHETIC,
    Vocabulary,
    given_ranges,
    load_tokenizer,
    read_vocabulary,
    why_not_runnable,
)
from quant.table import EmbeddingTable, build_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import Gemma4ForCausalLM, PreTrainedTokenizerBase

    from calibration.keepset import KeepSet
    from calibration.ranges import Ranges
    from calibration.states import HeadState
    from export.checkpoint.mtp import MtpCheckpoint
    from export.mtp.options import MtpExportOptions

_WANTED_FILES = (*CONFIG_FILES, *TOKENIZER_FILES)
_SYNTHETIC_STATES = 2
_CHECKED_STATES = 8


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
    return Sources(head_source, head, verifier_source, embeddings, load_tokenizer(folder), folder)


def vocabulary_of(sources: Sources) -> Vocabulary:
    """The vocabulary that the keep set is chosen from; its stop set is the verifier's."""
    folder = sources.verifier_source.folder if sources.verifier_source else sources.head_source.folder
    return read_vocabulary(folder, sources.head.config.vocab_size, sources.tokenizer)


def gather_evidence(sources: Sources, options: MtpExportOptions, progress: Callable[[str], None]) -> Evidence:
    """States to calibrate on and to check on; synthetic ones where the verifier cannot run, and marked so."""
    ranges = given_ranges(options.calibration)
    reason = "synthetic states were asked for" if options.calibration == SYNTHETIC else _why_not_run(sources)
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


def _run_prompts(
    verifier: Gemma4ForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], window: int
) -> PromptStates:
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    with one_thread():
        return states_of_prompts(verifier, encoded, window)


def _why_not_run(sources: Sources) -> str | None:
    if sources.verifier_source is None:
        return "no verifier is given"
    if sources.tokenizer is None:
        return "there is no tokenizer beside the head or its verifier"
    return why_not_runnable(sources.verifier_source.folder)
