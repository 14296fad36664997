"""What an SLM's export reads: the checkpoint, and the texts that it is calibrated and checked on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.errors import CalibrationError
from calibration.prompts import encode_prompt, read_prompts
from calibration.threads import one_thread
from calibration.verifier import load_verifier
from export.answers import greedy_sequences
from export.checkpoint.slm import read_slm_checkpoint
from export.checkpoint.source import CONFIG_FILES, TOKENIZER_FILES, CheckpointSource, resolve_checkpoint
from export.errors import ExportError
from export.hashing import sha256_file
from export.sources import SYNTHETIC, given_ranges, load_tokenizer, read_vocabulary, why_not_runnable

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import Gemma4ForCausalLM

    from calibration.ranges import Ranges
    from export.checkpoint.slm import SlmCheckpoint
    from export.slm.options import SlmExportOptions
    from export.sources import Vocabulary

_WANTED_FILES = (*CONFIG_FILES, *TOKENIZER_FILES)
ANSWER_TOKENS = 48
_CHECKED_TEXTS = 8
_SYNTHETIC_TOKENS = 24
_LARGEST_CATCH_UP = 2
ROUND_TOKENS = _LARGEST_CATCH_UP + 5
"""Tokens of a text that a sample's tree may take: those to catch up with, the root and a chain of four."""


@dataclass(frozen=True)
class SlmSources:
    """The opened checkpoint with its tokenizer, and the verifier that answers prompts, where there is one."""

    source: CheckpointSource
    checkpoint: SlmCheckpoint
    tokenizer_folder: Path | None
    vocabulary: Vocabulary
    verifier_source: CheckpointSource | None


@dataclass(frozen=True)
class HeldOut:
    """A text, the position of the round that is checked, and how many tokens that round has to catch up with."""

    text: list[int]
    position: int
    caught_up: int


@dataclass(frozen=True)
class Texts:
    """Token sequences to calibrate on and to count, rounds for checks, ready-made ranges if given.

    `why_synthetic` tells why the tokens are random, `why_no_answers` why a verifier that was named did not answer.
    """

    calibration: list[list[int]]
    held_out: list[HeldOut]
    ranges: Ranges | None
    source: str
    why_synthetic: str | None
    why_no_answers: str | None = None


def open_slm_sources(options: SlmExportOptions) -> SlmSources:
    """Open and check the SLM and, where one is named, its verifier; both must have the same vocabulary."""
    source = resolve_checkpoint(options.checkpoint, _WANTED_FILES)
    checkpoint = read_slm_checkpoint(source.folder)
    verifier = resolve_checkpoint(options.verifier, _WANTED_FILES) if options.verifier is not None else None
    folders = [one.folder for one in (source, verifier) if one is not None]
    folder = next((f for f in folders if (f / TOKENIZER_FILES[0]).is_file()), None)
    stop_folder = verifier.folder if verifier is not None else source.folder
    vocabulary = read_vocabulary(stop_folder, checkpoint.config.vocab_size, load_tokenizer(folder))
    return SlmSources(source, checkpoint, folder, vocabulary, verifier)


def gather_texts(sources: SlmSources, options: SlmExportOptions, progress: Callable[[str], None]) -> Texts:
    """Prompts with the verifier's greedy answers (alone without one); random tokens where nothing can be read."""
    ranges = given_ranges(options.calibration)
    if options.calibration == SYNTHETIC or sources.vocabulary.tokenizer is None:
        return _synthetic(sources, options, ranges)
    prompts = options.default_prompts if ranges or options.calibration is None else Path(options.calibration)
    verifier, why_no_answers = _open_verifier(sources)
    seen = _run_prompts(sources, verifier, prompts, progress, None)
    unseen = _run_prompts(sources, verifier, options.held_out_prompts, progress, _CHECKED_TEXTS)
    held_out = [_held_out(text, start, index, options.window) for index, (text, start) in enumerate(unseen)]
    checked = [one for one in held_out if one is not None]
    if not checked:
        raise CalibrationError(f"{options.held_out_prompts}: no prompt has the {ROUND_TOKENS + 1} tokens of a check")
    source = ranges.source if ranges else f"prompts:{sha256_file(prompts)}"
    return Texts([text for text, _ in seen], checked, ranges, source, None, why_no_answers)


def _synthetic(sources: SlmSources, options: SlmExportOptions, ranges: Ranges | None) -> Texts:
    if options.calibration not in (None, SYNTHETIC) and ranges is None:
        raise CalibrationError(
            f"--calibration {options.calibration}: prompts cannot be read, because there is no tokenizer beside the "
            f'checkpoint; give a file of ranges, or "{SYNTHETIC}" for size and speed work'
        )
    reason = "there is no tokenizer beside the checkpoint"
    if options.calibration == SYNTHETIC:
        reason = "synthetic tokens were asked for"
    rng = np.random.default_rng(options.seed)
    config = sources.checkpoint.config
    size = min(config.vocab_size, config.per_layer_vocab_size)
    length = min(_SYNTHETIC_TOKENS + ROUND_TOKENS, options.window)
    first, second = (rng.integers(0, size, length).tolist() for _ in range(2))
    source = ranges.source if ranges else f"synthetic:seed{options.seed}"
    return Texts([first], [HeldOut(second, length - 5, 0)], ranges, source, reason)


def _open_verifier(sources: SlmSources) -> tuple[Gemma4ForCausalLM | None, str | None]:
    """The verifier, or why the one that was named cannot run here."""
    if sources.verifier_source is None:
        return None, None
    reason = why_not_runnable(sources.verifier_source.folder)
    if reason is not None:
        return None, reason
    verifier = load_verifier(sources.verifier_source.folder)
    require_vocabulary(verifier.config.vocab_size, sources.checkpoint.config.vocab_size)
    return verifier, None


def _run_prompts(
    sources: SlmSources,
    verifier: Gemma4ForCausalLM | None,
    path: Path,
    progress: Callable[[str], None],
    limit: int | None,
) -> list[tuple[list[int], int]]:
    """Texts and where their answers begin."""
    tokenizer = sources.vocabulary.tokenizer
    assert tokenizer is not None
    prompts = read_prompts(path)
    if limit is not None:
        prompts = prompts[:: max(1, len(prompts) // limit)][:limit]
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    progress(f"{len(encoded)} prompts {'and the verifier’s answers' if verifier is not None else 'without answers'}")
    if verifier is None:
        return [(ids, len(ids)) for ids in encoded]
    with one_thread():
        texts = greedy_sequences(verifier, encoded, ANSWER_TOKENS)
    return [(text, len(ids)) for text, ids in zip(texts, encoded, strict=True)]


def require_vocabulary(size: int, ours: int) -> None:
    """Raise ExportError where a verifier of `size` tokens cannot belong to an SLM of `ours`."""
    if size != ours:
        raise ExportError(f"the verifier has {size} tokens, the SLM {ours}: not a pair")


def _held_out(text: list[int], answer: int, index: int, window: int) -> HeldOut | None:
    """A round in the answer, or at the text's end: later and with more to catch up from one text to the next."""
    text = text[:window]
    caught_up = index % (_LARGEST_CATCH_UP + 1)
    last = len(text) - caught_up - 5
    if last < 1:
        return None
    return HeldOut(text, min(answer + 3 * index, last), caught_up)
