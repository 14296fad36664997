"""`hyco-npu calibrate mtp`: the head's step graph, watched while it drafts from the verifier's own states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from calibration.errors import CalibrationError
from calibration.observations import Observations, Subject, merge_all
from calibration.responses import require_verifier
from calibration.verifier import load_verifier
from export.calibrating.jobs import open_jobs
from export.calibrating.shards import Calibrated, PromptTexts, choose_keep_set, dealt, read_texts
from export.calibrating.watch import Watcher
from export.checkpoint.reader import CheckpointReader
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import KINDS, load_mtp_head
from export.mtp.calibrate import table_ranges
from export.mtp.chain import MtpChain
from export.mtp.float_graph import build_float_graph
from export.mtp.quantized_graph import HIDDEN_TIE
from export.mtp.sources import open_sources, table_and_embed, vocabulary_of
from export.mtp.states import PromptStates, states_of_answers, states_of_prompts
from export.observe import WatchedGraph, save_watched
from export.sources import given_keep_set, keep_set_size, why_not_runnable
from quant.table import EmbeddingTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

    from calibration.keepset import KeepSet
    from calibration.observers import TensorObserver
    from calibration.states import HeadState
    from export.activation_params import Range
    from export.calibrating.options import CalibrationOptions
    from export.mtp.options import MtpExportOptions
    from export.mtp.sources import Sources

_TABLE_FILE = "table.safetensors"


@dataclass(frozen=True)
class _Asking:
    """A job's first task: prompts that the verifier answers, or reads with the `answered` ones that are there."""

    verifier: Path
    prompts: list[list[int]]
    answered: list[list[int]] | None
    window: int


@dataclass(frozen=True)
class _Drafting:
    """A job's second task: states that the watched graph drafts from."""

    watched: WatchedGraph
    feeds: FeedBuilder
    table: Path
    states: list[HeadState]


def calibrate_mtp(
    settings: MtpExportOptions, options: CalibrationOptions, progress: Callable[[str], None]
) -> Calibrated:
    """Observe the head of `settings` (checkpoint, verifier, window, position rule) over the prompts of `options`.

    Raises:
        UsageError: options that do not fit. CalibrationError: a verifier that cannot run, a shard without prompts.
        CheckpointError, PassError: naming file, tensor or node.
    """
    progress("reading checkpoints")
    sources = open_sources(settings)
    verifier, tokenizer = _require_verifier(sources)
    vocabulary = vocabulary_of(sources)
    given = given_keep_set(options.keep_set, vocabulary)
    if given is None:
        keep_set_size(options.keep_set, vocabulary)  # a wrong number is refused before the long work
    texts, verifier_sha256 = read_texts(tokenizer, options), CheckpointReader(verifier).sha256
    if texts.responses is not None:
        require_verifier(texts.responses, verifier_sha256)
    parts = dealt(texts, options)
    with TemporaryDirectory() as scratch, open_jobs(len(parts)) as jobs:
        verb = "answers" if texts.answered is None else "reads the answers to"
        progress(f"the verifier {verb} {len(texts.encoded)} prompts in {len(parts)} jobs")
        answers = jobs.run(_answer, [_asking(verifier, texts, part, settings.window) for part in parts])
        sequences = [sequence for part in answers for sequence in part.sequences]
        keep = choose_keep_set(given, options.keep_set, vocabulary, sequences)
        progress("tracing the graph")
        watched, reach = _watched(sources, keep, settings, Path(scratch))
        progress("drafting from the verifier's states")
        feeds = FeedBuilder(sources.head.config, settings.window, settings.position_rule)
        table = Path(scratch) / _TABLE_FILE
        tasks = [_Drafting(watched, feeds, table, part.states) for part in answers]
        tensors = jobs.run(_draft, tasks)
    hashes = {
        "checkpoint": sources.head.reader.sha256,
        "verifier": verifier_sha256,
        "keep_set": keep.sha256,
        "prompts": texts.sha256,
    }
    subject = Subject(
        kind="mtp",
        hashes=hashes,
        prompts=texts.prompts,
        settings={"window": settings.window, "position_rule": settings.position_rule},
        owners=watched.owners,
        limits=watched.limits,
        reach=reach,
        symmetric=dict.fromkeys(_caches(watched), settings.kv_bits),
    )
    shards = [Observations(subject, part, seen) for part, seen in zip(parts, tensors, strict=True)]
    return Calibrated(merge_all(shards), keep, counted=given is None)


def _require_verifier(sources: Sources) -> tuple[Path, PreTrainedTokenizerBase]:
    reason = None
    if sources.verifier_source is None:
        reason = "no verifier is given (--verifier)"
    elif sources.tokenizer is None:
        reason = "there is no tokenizer beside the head or its verifier"
    else:
        reason = why_not_runnable(sources.verifier_source.folder)
    if reason is not None:
        raise CalibrationError(f"a head is calibrated on its verifier's states, and {reason}")
    assert sources.verifier_source is not None
    assert sources.tokenizer is not None
    return sources.verifier_source.folder, sources.tokenizer


def _asking(verifier: Path, texts: PromptTexts, part: tuple[int, ...], window: int) -> _Asking:
    answered = None if texts.answered is None else [texts.answered[n] for n in part]
    return _Asking(verifier, [texts.encoded[n] for n in part], answered, window)


def _answer(task: _Asking) -> PromptStates:
    verifier = load_verifier(task.verifier)
    if task.answered is None:
        return states_of_prompts(verifier, task.prompts, task.window)
    return states_of_answers(verifier, task.prompts, task.answered, task.window)


def _watched(
    sources: Sources, keep: KeepSet, settings: MtpExportOptions, scratch: Path
) -> tuple[WatchedGraph, dict[str, Range]]:
    """The step graph, beside it the table whose rows feed the chains, and what that table can reach."""
    table, _ = table_and_embed(sources, keep, settings.seed)
    assert table is not None  # there is a verifier
    table.save(scratch / _TABLE_FILE)
    head = load_mtp_head(sources.head.config, sources.head.state_dict())
    model = build_float_graph(head, keep.token_ids, settings.window)
    return save_watched(model, scratch / "observed.onnx", [HIDDEN_TIE]), table_ranges(table)


def _caches(watched: WatchedGraph) -> list[str]:
    """Keys and values, which get symmetric codes, and all that moves with them."""
    owners = {watched.owners[f"{role}_{kind}"] for role in ("keys", "values") for kind in KINDS}
    return [name for name, owner in watched.owners.items() if owner in owners]


def _draft(task: _Drafting) -> dict[str, TensorObserver]:
    table = EmbeddingTable.load(task.table)
    watcher = Watcher(task.watched)
    chain = MtpChain(task.feeds, table.token_ids.numpy(), lambda token_id: table.lookup(token_id).numpy())
    for state in task.states:
        for _ in chain.run(watcher, state):
            pass
    return watcher.tensors
