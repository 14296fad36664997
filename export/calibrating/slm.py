"""`hyco-npu calibrate slm`: the draft graph, watched while it reads texts in chunks and drafts a tree behind each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from calibration.errors import CalibrationError
from calibration.observations import Observations, Subject, merge_all
from calibration.responses import require_verifier
from calibration.verifier import load_verifier
from export.answers import greedy_sequences
from export.calibrating.jobs import open_jobs
from export.calibrating.shards import Calibrated, PromptTexts, choose_keep_set, dealt, read_texts
from export.calibrating.watch import Watcher
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.slm import read_slm_checkpoint
from export.checkpoint.slm_tables import per_layer_table, token_table
from export.observe import WatchedGraph, save_watched
from export.slm.calibrate import cache_ranges, read_and_draft, table_ranges
from export.slm.float_graph import build_graph
from export.slm.runner import SlmModel, SlmTables
from export.slm.sources import ANSWER_TOKENS, open_slm_sources, require_vocabulary
from export.slm.weights import coded_weights
from export.sources import given_keep_set, keep_set_size, why_not_runnable

if TYPE_CHECKING:
    from collections.abc import Callable

    from calibration.keepset import KeepSet
    from calibration.observers import TensorObserver
    from export.calibrating.options import CalibrationOptions
    from export.checkpoint.slm import SlmCheckpoint
    from export.slm.options import SlmExportOptions
    from export.slm.sources import SlmSources


@dataclass(frozen=True)
class _Answering:
    """Hash of the verifier whose answers are read, None for none; its folder where it has yet to answer; a remark."""

    sha256: str | None
    folder: Path | None
    remark: str | None


@dataclass(frozen=True)
class _Asking:
    """A job's first task: prompts that the verifier answers."""

    verifier: Path
    prompts: list[list[int]]
    vocab_size: int


@dataclass(frozen=True)
class _Drafting:
    """A job's second task: texts by number, which the watched graph reads and drafts behind."""

    watched: WatchedGraph
    checkpoint: Path
    keep: np.ndarray
    rows: int
    window: int
    texts: dict[int, list[int]]


def calibrate_slm(
    settings: SlmExportOptions, options: CalibrationOptions, progress: Callable[[str], None]
) -> Calibrated:
    """Observe the SLM of `settings` (checkpoint, verifier, rows, window, clips, form of codes) over `options.prompts`.

    Raises:
        UsageError: options that do not fit. CalibrationError: no tokenizer, a shard without prompts.
        CheckpointError, PassError: naming file, tensor or node.
    """
    progress("reading the checkpoint")
    sources = open_slm_sources(settings)
    vocabulary = sources.vocabulary
    if vocabulary.tokenizer is None:
        raise CalibrationError("there is no tokenizer beside the checkpoint or its verifier; without, nothing is read")
    given = given_keep_set(options.keep_set, vocabulary)
    if given is None:
        keep_set_size(options.keep_set, vocabulary)  # a wrong number is refused before the long work
    prompts = read_texts(vocabulary.tokenizer, options)
    answering = _answering(sources, prompts)
    parts = dealt(prompts, options)
    with TemporaryDirectory() as scratch, open_jobs(len(parts)) as jobs:
        known = prompts.encoded if prompts.answered is None else prompts.answered
        texts = [{n: known[n] for n in part} for part in parts]
        if answering.folder is not None:
            progress(f"the verifier answers {len(prompts.encoded)} prompts in {len(parts)} jobs")
            vocab_size = sources.checkpoint.config.vocab_size
            asked = [_Asking(answering.folder, list(part.values()), vocab_size) for part in texts]
            answers = jobs.run(_answer, asked)
            texts = [dict(zip(part, found, strict=True)) for part, found in zip(texts, answers, strict=True)]
        sequences = [text for part in texts for text in part.values()]
        keep = choose_keep_set(given, options.keep_set, vocabulary, sequences)
        progress("tracing the graph and storing the checkpoint's codes")
        watched = _watched(sources.checkpoint, keep, settings, Path(scratch))
        progress("reading texts and drafting behind them")
        ids, folder = np.asarray(keep.token_ids), sources.source.folder
        tasks = [_Drafting(watched, folder, ids, settings.rows, settings.window, part) for part in texts]
        tensors = jobs.run(_draft, tasks)
    hashes = {
        "checkpoint": sources.checkpoint.reader.sha256,
        "verifier": answering.sha256,
        "keep_set": keep.sha256,
        "prompts": prompts.sha256,
    }
    subject = _subject(sources.checkpoint, watched, hashes, prompts.prompts, settings)
    shards = [Observations(subject, part, seen) for part, seen in zip(parts, tensors, strict=True)]
    return Calibrated(merge_all(shards), keep, given is None, answering.remark)


def _answering(sources: SlmSources, prompts: PromptTexts) -> _Answering:
    """The verifier that answers or has answered. Raises ResponseFileError for responses of another or of several."""
    source, file = sources.verifier_source, prompts.responses
    if file is not None:
        # whole or not, runnable or not: a verifier that has answered does not run here
        sha256 = CheckpointReader(source.folder).sha256 if source else file.responses[0].verifier_sha256
        require_verifier(file, sha256)
        return _Answering(sha256, None, None)
    if source is None:
        return _Answering(None, None, "no verifier is given: prompts are read without answers")
    reason = why_not_runnable(source.folder)
    if reason is not None:
        return _Answering(None, None, f"prompts are read without answers: {reason}")
    return _Answering(CheckpointReader(source.folder).sha256, source.folder, None)


def _answer(task: _Asking) -> list[list[int]]:
    verifier = load_verifier(task.verifier)
    require_vocabulary(verifier.config.vocab_size, task.vocab_size)
    return greedy_sequences(verifier, task.prompts, ANSWER_TOKENS)


def _watched(checkpoint: SlmCheckpoint, keep: KeepSet, settings: SlmExportOptions, scratch: Path) -> WatchedGraph:
    weights = coded_weights(checkpoint, np.asarray(keep.token_ids), settings.two_bit, settings.head_bits)
    model = build_graph(checkpoint, weights, keep.size, settings.rows, settings.window, settings.activation_clip)
    return save_watched(model, scratch / "observed.onnx")


def _draft(task: _Drafting) -> dict[str, TensorObserver]:
    checkpoint = read_slm_checkpoint(task.checkpoint)
    watcher = Watcher(task.watched)
    model = SlmModel(
        checkpoint.config, _tables(checkpoint), watcher, task.rows, watcher, task.rows, task.window, "float32"
    )
    for number, text in task.texts.items():
        read_and_draft(model, text, number, task.keep)
    return watcher.tensors


def _tables(checkpoint: SlmCheckpoint) -> SlmTables:
    return SlmTables(token_table(checkpoint), per_layer_table(checkpoint))


def _subject(
    checkpoint: SlmCheckpoint,
    watched: WatchedGraph,
    hashes: dict[str, str | None],
    prompts: int,
    settings: SlmExportOptions,
) -> Subject:
    shaping = ("rows", "window", "two_bit", "head_bits", "activation_clip")
    return Subject(
        kind="slm",
        hashes=hashes,
        prompts=prompts,
        settings={name: getattr(settings, name) for name in shaping},
        owners=watched.owners,
        given=cache_ranges(checkpoint, watched.owners),
        limits=watched.limits,
        reach=table_ranges(_tables(checkpoint)),
    )
