"""`hyco-npu qat`: from a head in bf16 to a checkpoint with trained codes, its curve and the table to decide by."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from export.checkpoint.mtp import read_mtp_checkpoint
from export.checkpoint.reader import CheckpointReader
from export.graphs.mtp import load_mtp_head
from export.hashing import sha256_file
from export.sources import load_tokenizer
from hyco_npu.family.stages import load_verifier
from hyco_npu.qat.chain import Trunk, centroids_of
from hyco_npu.qat.convert import save_checkpoint
from hyco_npu.qat.curve import draw_png, write_csv
from hyco_npu.qat.data import RowBuilder
from hyco_npu.qat.evaluate import Ruler
from hyco_npu.qat.loop import STATE_FILE, train
from hyco_npu.qat.processes import Processes
from hyco_npu.qat.table import Verdict, judge, names_of, original_form, quantized_form, table_rows, untrained_forms
from hyco_npu.qat.texts import make_texts, record_texts
from hyco_npu.qat.train import Lesson, Trainer
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import Gemma4ForCausalLM

    from export.checkpoint.mtp import MtpCheckpoint
    from hyco_npu.qat.curve import CurveRow
    from hyco_npu.qat.options import QatOptions

RECORD_FILE = "qat.json"
"""Recipe, hashes of the inputs and the table, beside the trained weights."""
_INPUTS_FILE = "inputs.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class QatResult:
    """A finished training; `table` has one row a form of the weights, `seconds` is the training alone."""

    steps: int
    loss_first: float
    loss_last: float
    table: list[dict[str, object]]
    out: str
    verdict: str
    helped: bool
    recovered: float | None
    stopped_early: bool
    seconds: float
    steps_per_second: float
    device: str
    processes: int
    recipe: dict[str, object]
    inputs: dict[str, object]


def run_qat(options: QatOptions, progress: Callable[[str], None]) -> QatResult | None:
    """Train as `options` say; the checkpoint appears at `options.out` when all of it is there.

    Only the first process of a group gets a result; the others get None. Raises UsageError for options, folders and
    models that do not fit, CheckpointError and PromptFileError naming the file.
    """
    _check_out(options)
    processes = Processes.join(options.device)
    say = progress if processes.is_main else _silent
    source = read_mtp_checkpoint(options.checkpoint)
    inputs = _inputs(options, source)
    with processes.state.main_process_first():
        _claim(options, inputs)
    trainer, ruler = prepare(options, source, processes, say)
    began = time.perf_counter()
    history = train(trainer, ruler, options, say)
    seconds = time.perf_counter() - began
    say("measuring every form of the weights on the validation texts")
    table, verdict = _table(trainer, ruler, options)
    if not processes.is_main:
        return None
    result = QatResult(
        steps=trainer.step,
        loss_first=history.rows[0]["loss"],
        loss_last=history.rows[-1]["loss"],
        table=table,
        out=str(options.out),
        verdict=verdict.text,
        helped=verdict.helped,
        recovered=verdict.recovered,
        stopped_early=history.stopped_early,
        seconds=seconds,
        steps_per_second=history.steps_run / seconds,
        device=str(processes.device),
        processes=processes.count,
        recipe=asdict(options.recipe),
        inputs=inputs,
    )
    _write(options, source, trainer, history.rows, result)
    return result


def prepare(
    options: QatOptions, source: MtpCheckpoint, processes: Processes, progress: Callable[[str], None]
) -> tuple[Trainer, Ruler]:
    """Everything that training needs: the verifier's answers and states, the head as teacher and as student."""
    progress("loading the verifier")
    verifier: Any = load_verifier(options.verifier)
    _check_pair(options, source, verifier)
    tokenizer = load_tokenizer(options.verifier)
    if tokenizer is None:
        raise UsageError(f"{options.verifier} has no tokenizer; the prompts cannot be encoded without it")
    with processes.state.main_process_first():
        texts = make_texts(options, verifier, tokenizer, progress)
    verifier.to(processes.device)
    recorded = record_texts(texts, verifier, processes.device, progress)
    state = source.state_dict()
    head = load_mtp_head(source.config, state).to(processes.device)
    centroids = centroids_of(source.config, state)
    trunk = Trunk(head, None if centroids is None else centroids.to(processes.device))
    builder = RowBuilder(source.config, options.recipe.window)
    bf16 = options.precision == "bf16" or (options.precision == "auto" and processes.device.type == "cuda")
    trainer = Trainer(
        Lesson(trunk, recorded.training, builder), options.recipe, processes, options.micro_batch, bf16=bf16
    )
    ruler = Ruler(trunk, builder, recorded.greedy, recorded.sampled, verifier.get_input_embeddings().float(), processes)
    return trainer, ruler


def _table(trainer: Trainer, ruler: Ruler, options: QatOptions) -> tuple[list[dict[str, object]], Verdict]:
    trunk, bits, seed = trainer.lesson.trunk, options.recipe.bits, options.recipe.seed
    forms = [original_form(trunk.weights, trunk.centroids), *untrained_forms(trunk.weights, bits)]
    forms.append(quantized_form(names_of(bits)[2], trainer.student.codes()))
    measured = [(form, ruler.measure(form)) for form in forms]
    return table_rows(measured, seed), judge({form.name: figures for form, figures in measured}, bits, seed)


def _check_pair(options: QatOptions, source: MtpCheckpoint, verifier: Gemma4ForCausalLM) -> None:
    config, head = verifier.config, source.config
    for what, theirs, ours in (
        ("hidden size", config.hidden_size, head.backbone_hidden_size),
        ("vocabulary", config.vocab_size, head.vocab_size),
    ):
        if theirs != ours:
            raise UsageError(
                f"{options.verifier} has {what} {theirs}, the head {options.checkpoint} was made for {ours}: not a pair"
            )


def _inputs(options: QatOptions, source: MtpCheckpoint) -> dict[str, object]:
    """What decides the result; equal inputs mean the same work."""
    files = sorted({source.reader.file(name) for name in source.config.tensor_shapes()})
    return {
        "head_sha256": [sha256_file(file) for file in files],
        "verifier_sha256": CheckpointReader(options.verifier).sha256,
        "prompts_sha256": sha256_file(options.prompts),
        "validation_sha256": sha256_file(options.validation),
        "recipe": asdict(options.recipe),
    }


def _claim(options: QatOptions, inputs: dict[str, object]) -> None:
    """Mark the work folder as this work's, so that the state of another run is never taken for its own."""
    folder, path = options.work_dir, options.work_dir / _INPUTS_FILE
    if (folder / STATE_FILE).is_file() and not options.resume:
        raise UsageError(f"{folder} holds a training that was broken off; go on with --resume, or remove the folder")
    if path.is_file():
        try:
            owner = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise HycoError(f"{path} is not JSON ({error}); remove {folder} and train again") from error
        if owner != inputs:
            changed = sorted(key for key in inputs if owner.get(key) != inputs[key])
            raise UsageError(f"{folder} belongs to another training (other {', '.join(changed)}); name another --out")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(path, inputs)


def _check_out(options: QatOptions) -> None:
    out = options.out
    if not out.exists():
        return
    if not options.force:
        raise UsageError(f"{out} exists; name another --out, or replace it with --force")
    if not (out / RECORD_FILE).is_file():
        raise UsageError(f"{out} was not written by this command; --force replaces only that: name another --out")


def _write(
    options: QatOptions, source: MtpCheckpoint, trainer: Trainer, rows: list[CurveRow], result: QatResult
) -> None:
    """Everything into a folder beside `out`, which is then renamed; the work folder goes."""
    out = options.out
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_checkpoint(partial, source, options.checkpoint, trainer.student)
        write_csv(partial / "curve.csv", rows)
        draw_png(partial / "curve.png", rows)
        _write_json(partial / RECORD_FILE, {"schema_version": _SCHEMA_VERSION, **asdict(result), "out": out.name})
        _check_out(options)
        if out.exists():
            shutil.rmtree(out)
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(options.work_dir)


def _write_json(path: Path, content: dict[str, object]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _silent(_: str) -> None:
    """The progress of a process that is not the first."""
