"""`hyco-npu calibrate slm`: the draft graph, watched while it reads texts in chunks and drafts a tree behind each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from calibration.errors import CalibrationError
from calibration.observations import Observations, Subject, merge_all
from calibration.states import greedy_sequence
from calibration.verifier import load_verifier
from export.calibrating.jobs import open_jobs
from export.calibrating.shards import Calibrated, PromptTexts, choose_keep_set, dealt, read_texts
from export.calibrating.watch import WatchedGraph, Watcher, save_watched
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.slm import read_slm_checkpoint
from export.checkpoint.slm_tables import per_layer_table, token_table
from export.graphs.clips import clip_bounds
from export.slm.calibrate import read_and_draft, table_ranges
from export.slm.float_graph import build_graph
from export.slm.runner import SlmModel, SlmTables
from export.slm.sources import ANSWER_TOKENS, open_slm_sources, require_vocabulary
from export.slm.weights import coded_weights
from export.sources import given_keep_set, keep_set_size, why_not_runnable

if TYPE_CHECKING:
    from collections.abc import Callable

    from calibration.keepset import KeepSet
    from calibration.observers import TensorObserver
    from export.activation_params import Range
    from export.calibrating.options import CalibrationOptions
    from export.checkpoint.slm import SlmCheckpoint
    from export.slm.options import SlmExportOptions
    from export.slm.sources import SlmSources


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
    verifier, remark = _verifier(sources)
    prompts = read_texts(vocabulary.tokenizer, options)
    parts = dealt(prompts, options)
    with TemporaryDirectory() as scratch, open_jobs(len(parts)) as jobs:
        texts = [{n: prompts.encoded[n] for n in part} for part in parts]
        if verifier is not None:
            progress(f"the verifier answers {len(prompts.encoded)} prompts in {len(parts)} jobs")
            asked = [_Asking(verifier, list(part.values()), sources.checkpoint.config.vocab_size) for part in texts]
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
    subject = _subject(sources, verifier, keep, prompts, settings, watched)
    shards = [Observations(subject, part, seen) for part, seen in zip(parts, tensors, strict=True)]
    return Calibrated(merge_all(shards), keep, given is None, remark)


def _verifier(sources: SlmSources) -> tuple[Path | None, str | None]:
    """The verifier that answers, and a remark where none can."""
    if sources.verifier_source is None:
        return None, "no verifier is given: prompts are read without answers"
    folder = sources.verifier_source.folder
    reason = why_not_runnable(folder)
    if reason is not None:
        return None, f"prompts are read without answers: {reason}"
    return folder, None


def _answer(task: _Asking) -> list[list[int]]:
    verifier = load_verifier(task.verifier)
    require_vocabulary(verifier.config.vocab_size, task.vocab_size)
    return [greedy_sequence(verifier, ids, ANSWER_TOKENS) for ids in task.prompts]


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


def _given(checkpoint: SlmCheckpoint, watched: WatchedGraph) -> dict[str, Range]:
    """The 8-bit ranges of new keys and values, and so of past ones and all else that moves with them."""
    given: dict[str, Range] = {}
    for owner in checkpoint.config.cache_owners:
        for role, scale in zip(("keys", "values"), checkpoint.cache_scales(owner), strict=True):
            tied = watched.owners[f"new_{role}_{owner}"]
            given |= {name: clip_bounds(scale) for name, group in watched.owners.items() if group == tied}
    return given


def _subject(
    sources: SlmSources,
    verifier: Path | None,
    keep: KeepSet,
    prompts: PromptTexts,
    settings: SlmExportOptions,
    watched: WatchedGraph,
) -> Subject:
    checkpoint = sources.checkpoint
    return Subject(
        kind="slm",
        hashes={
            "checkpoint": checkpoint.reader.sha256,
            "verifier": CheckpointReader(verifier).sha256 if verifier is not None else None,
            "keep_set": keep.sha256,
            "prompts": prompts.sha256,
        },
        prompts=prompts.prompts,
        settings={
            name: getattr(settings, name) for name in ("rows", "window", "two_bit", "head_bits", "activation_clip")
        },
        owners=watched.owners,
        given=_given(checkpoint, watched),
        limits=watched.limits,
        reach=table_ranges(_tables(checkpoint)),
    )
