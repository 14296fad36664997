"""`hyco-npu qat`: train an MTP head's weights under the rounding that export will do to them."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, stderr_console
from hyco_npu.family import CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, MTP_DIR, VERIFIER_DIR
from quant.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from hyco_npu.qat.run import QatResult

app = typer.Typer()


class DeviceChoice(str, Enum):
    """Where to train."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class PrecisionChoice(str, Enum):
    """Arithmetic of the training's matrix products; auto is bf16 on CUDA, else fp32."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


@command(app, "qat", example="hyco-npu qat --steps 100 --out my-head")
def qat(
    checkpoint: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of the head.", show_default="the family's head"),
    ] = None,
    verifier: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of its verifier.", show_default="the family's"),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Prompts to train on.", show_default="the family's"),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Other prompts, for the curve and the table.", show_default="the family's"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 100,
    bits: Annotated[int, typer.Option(help="Bits of the weights: 4, 3 or 2; export takes 4.")] = 4,
    learning_rate: Annotated[float, typer.Option(help="Peak of the schedule.")] = 6e-4,
    sequences: Annotated[int, typer.Option(help="Answers in a batch.")] = 64,
    rows: Annotated[int, typer.Option(help="Positions drawn from each of them.")] = 16,
    micro_batch: Annotated[
        int, typer.Option(help="Answers that go through the head at once; gradients add up.", show_default="all")
    ] = 0,
    window: Annotated[int, typer.Option(help="Keys and values that a row attends to, as in the export.")] = 1024,
    answer_tokens: Annotated[int, typer.Option(help="Longest answer of the verifier, in tokens.")] = 128,
    patience: Annotated[
        int, typer.Option(help="End after so many validations without a better one (one every 10 steps); 0: never.")
    ] = 0,
    device: Annotated[DeviceChoice, typer.Option(help="Where to train.")] = DeviceChoice.AUTO,
    precision: Annotated[PrecisionChoice, typer.Option(help="auto: bf16 on CUDA.")] = PrecisionChoice.AUTO,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the trained checkpoint.")] = Path("mtp-qat"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampled answers, batches and bootstrap.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the state in OUT.work.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier result.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train an MTP head's weights for 4 bits; ends with a table that says whether it helped.

    Several processes share the work: torchrun --nproc-per-node 2 -m hyco_npu qat --steps 100
    """
    from hyco_npu.cli.progress import progress_lines
    from hyco_npu.qat.options import QatOptions, Recipe
    from hyco_npu.qat.run import run_qat

    recipe = Recipe(
        steps=steps,
        bits=bits,
        learning_rate=learning_rate,
        sequences=sequences,
        rows=rows,
        window=window,
        answer_tokens=answer_tokens,
        seed=seed,
    )
    head, owner = _pair(checkpoint, verifier)
    options = QatOptions(
        checkpoint=head,
        verifier=owner,
        prompts=prompts or CALIBRATION_PROMPTS,
        validation=validation or HELD_OUT_PROMPTS,
        out=out,
        work_dir=out.with_name(f"{out.name}.work"),
        recipe=recipe,
        micro_batch=micro_batch,
        patience=patience,
        device=device.value,
        precision=precision.value,
        resume=resume,
        force=force,
    )
    with progress_lines(stderr_console()) as progress:
        result = run_qat(options, progress)
    if result is not None:
        emit(dataclasses.asdict(result), as_json, lambda console: render_qat(console, result))


def _pair(checkpoint: Path | None, verifier: Path | None) -> tuple[Path, Path]:
    """The head and its verifier; those of the embedded family where nothing else is named."""
    if checkpoint is None or checkpoint.resolve() == MTP_DIR.resolve():
        return MTP_DIR, verifier or VERIFIER_DIR
    if verifier is None:
        raise UsageError(f"--checkpoint {checkpoint} needs its --verifier, whose states it is trained on")
    return checkpoint, verifier


def render_qat(console: Console, result: QatResult) -> None:
    """The table, the verdict, and what to do next."""
    from rich.table import Table

    table = Table(
        "Weights",
        "KL, nats",
        "top-1",
        "accepted, greedy",
        "against bf16",
        "accepted, T=1",
        "bytes",
        title="Accepted tokens per round of 4 drafted; intervals are 95 % over prompts",
    )
    for row in result.table:
        table.add_row(
            str(row["weights"]),
            f"{row['kl']:.4f}",
            f"{row['top1']:.3f}",
            f"{row['accepted_greedy']:.3f} {_interval(row['accepted_greedy_ci95'])}",
            f"{row['accepted_greedy_minus_bf16']:+.3f} {_interval(row['accepted_greedy_minus_bf16_ci95'])}",
            f"{row['accepted_sampled']:.3f} {_interval(row['accepted_sampled_ci95'])}",
            f"{row['size_bytes']:,}",
        )
    console.print(table)
    console.print(result.verdict)
    console.print(
        f"{result.steps} steps in {result.seconds:.0f} s, loss {result.loss_first:.4f} to {result.loss_last:.4f}; "
        f"{result.out} goes to `hyco-npu export mtp --checkpoint`"
    )


def _interval(bounds: object) -> str:
    assert isinstance(bounds, list)
    return f"({bounds[0]:.3f} to {bounds[1]:.3f})"
