"""Runs a sweep's settings, one after the other or in several processes. A finished setting is a file and is kept.

The file is named by a hash of all that decides the result: the configuration's values, the prompts' tokens, sampling
and length, the checkpoints and the keep set's prompts. A plan that changed reuses what still fits.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from calibration.jsonfile import read_object, write_object
from calibration.prompts import encode_prompt, read_prompt_file
from export.checkpoint.mtp import read_mtp_checkpoint
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.slm import read_slm_checkpoint
from export.sources import vocabulary_in
from hyco_npu import __version__
from hyco_npu.decode.cost import DraftCost, draft_cost
from hyco_npu.decode.models import ModelPaths, Models
from hyco_npu.decode.session import Session
from hyco_npu.decode.trace import bytes_down, bytes_up, head_on_device
from hyco_npu.sweep.errors import SweepError
from hyco_npu.sweep.plan import digest
from quant.errors import HycoError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from calibration.prompts import Prompt
    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.loop import Round
    from hyco_npu.decode.session import GenerationOptions
    from hyco_npu.sweep.plan import Setting

_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Workload:
    """What every setting answers: prompts by id as token ids, length and sampling of the answers, the models."""

    prompts: tuple[tuple[str, tuple[int, ...]], ...]
    options: GenerationOptions
    paths: ModelPaths


@dataclass(frozen=True)
class TextCounts:
    """One prompt's answer: tokens with the prefill's; rounds, bytes and seconds without the prefill."""

    prompt_id: str
    tokens: int
    rounds: int
    bytes_up: int
    bytes_down: int
    seconds: float

    @property
    def decoded(self) -> int:
        """Tokens that rounds emitted: all but the prefill's one."""
        return self.tokens - 1


@dataclass(frozen=True)
class Measured:
    """What a setting came to: its texts in the prompts' order, and what a drafting round costs by dimensions."""

    texts: tuple[TextCounts, ...]
    cost: DraftCost


@dataclass(frozen=True)
class _Task:
    setting: Setting
    workload: Workload
    path: Path


def workload_of(prompts: Sequence[Prompt], options: GenerationOptions, paths: ModelPaths) -> Workload:
    """Prompts through the verifier's chat template."""
    tokenizer = vocabulary_in(paths.verifier).tokenizer
    assert tokenizer is not None  # vocabulary_in reads it or raises
    encoded = tuple((prompt.id, tuple(encode_prompt(tokenizer, prompt))) for prompt in prompts)
    return Workload(encoded, options, paths)


def run_settings(
    settings: Sequence[Setting], workload: Workload, work_dir: Path, jobs: int, done: Callable[[int], None]
) -> list[Measured]:
    """What every setting came to; `done` is told how many different ones are finished.

    Takes the files in `work_dir` and adds to them. Raises SweepError naming a setting that failed, or a file that holds
    no result.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    paths = [work_dir / f"{name}.json" for name in _file_names(settings, workload)]
    pairs = dict(zip(paths, settings, strict=True))
    tasks = [_Task(setting, workload, path) for path, setting in pairs.items() if not path.is_file()]
    finished = len(pairs) - len(tasks)
    done(finished)
    for number, _ in enumerate(_in_turn(tasks) if jobs == 1 else _side_by_side(tasks, jobs), start=finished + 1):
        done(number)
    return [_read(path) for path in paths]


def measure(models: Models, config: DecodeConfig, workload: Workload) -> Measured:
    """Answer all prompts, each as a text of its own from the same seed."""
    texts = []
    for prompt_id, token_ids in workload.prompts:
        rounds = list(Session(models, config, workload.options).generate(token_ids))
        texts.append(counts_of(prompt_id, rounds, head_on_device(config)))
    return Measured(tuple(texts), cost_of(models, config))


def counts_of(prompt_id: str, rounds: Sequence[Round], with_update: bool) -> TextCounts:
    """Sums over a text; the first of `rounds` is its prefill. `with_update`: replies carry the head's state."""
    drafted = rounds[1:]
    return TextCounts(
        prompt_id,
        tokens=sum(len(one.emitted) for one in rounds),
        rounds=len(drafted),
        bytes_up=sum(map(bytes_up, drafted)),
        bytes_down=sum(bytes_down(one, with_update) for one in drafted),
        seconds=sum(one.seconds for one in drafted),
    )


def cost_of(models: Models, config: DecodeConfig) -> DraftCost:
    """The device's cost of a round, at the sizes that the keep sets have here."""
    sections = {"mtp": config.mtp, "slm": config.slm}
    keep = {name: len(models.keep_set(one.keep_set)) for name, one in sections.items() if one is not None}
    mtp, slm = read_mtp_checkpoint(models.paths.mtp).config, read_slm_checkpoint(models.paths.slm)
    return draft_cost(config, mtp, slm, keep)


def _file_names(settings: Sequence[Setting], workload: Workload) -> list[str]:
    paths, vocabulary = workload.paths, vocabulary_in(workload.paths.verifier)
    folders = {"verifier": paths.verifier, "mtp": paths.mtp, "slm": paths.slm}
    hashes = {name: CheckpointReader(folder).sha256 for name, folder in folders.items()}
    common = {
        "schema_version": _SCHEMA_VERSION,
        "version": __version__,
        "prompts": workload.prompts,
        "stop_ids": sorted(vocabulary.stop_ids),
        "counted": read_prompt_file(paths.prompts).sha256,
        "options": asdict(workload.options),
    }
    names = []
    for setting in settings:
        used = {name: hashes[name] for name in hashes if name == "verifier" or setting.values[name] is not None}
        names.append(digest({**common, "checkpoints": used, "values": setting.values}))
    return names


def _in_turn(tasks: Sequence[_Task]) -> Iterator[None]:
    for task in tasks:
        try:
            _run(task)
        except HycoError as error:
            raise _failure(task.setting, error) from error
        yield


def _side_by_side(tasks: Sequence[_Task], jobs: int) -> Iterator[None]:
    # spawned: forked children of a process with threads of torch may hang
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        futures = {pool.submit(_run, task): task.setting for task in tasks}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None:
                pool.shutdown(cancel_futures=True)
                raise _failure(futures[future], error) from error
            yield


def _failure(setting: Setting, error: BaseException) -> SweepError:
    if isinstance(error, BrokenProcessPool):
        return SweepError(f"setting {setting.name} or one beside it: the process was killed; is there memory for all?")
    cause = str(error) if isinstance(error, HycoError) else f"{type(error).__name__}: {error}"
    return SweepError(f"setting {setting.name}: {cause}")


def _run(task: _Task) -> None:
    """In whatever process: the setting's result becomes its file."""
    measured = measure(_models(task.workload.paths), task.setting.config, task.workload)
    fields = {"schema_version": _SCHEMA_VERSION, "setting": task.setting.name, "values": task.setting.values}
    write_object(task.path, {**fields, **asdict(measured)})


@cache
def _models(paths: ModelPaths) -> Models:
    """One set of models a process."""
    return Models(paths)


def _read(path: Path) -> Measured:
    fields: dict[str, Any] = read_object(path, _SCHEMA_VERSION, SweepError)
    try:
        return Measured(tuple(TextCounts(**text) for text in fields["texts"]), DraftCost(**fields["cost"]))
    except (KeyError, TypeError) as error:
        raise SweepError(f"{path} holds no result of a setting ({error}); delete it and run the sweep again") from error
