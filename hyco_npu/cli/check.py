"""`hyco-npu check`: does a bundle still compute what its checkpoint computes?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, stderr_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from export.parity import CheckResult


app = typer.Typer()


@command(app, "check", example="hyco-npu check mtp.bundle --json")
def check(
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    samples: Annotated[
        int | None, typer.Option(min=1, help="Held-out steps or passes to run, spread evenly.", show_default="all")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a bundle's hashes and its parity: transformers, fp32, QDQ on the CPU, HTP simulator."""
    from export.bundle import open_bundle
    from export.mtp.check import check_bundle
    from export.slm.check import check_slm_bundle
    from hyco_npu.cli.progress import progress_lines

    opened = open_bundle(bundle)
    check_kind = check_slm_bundle if opened.manifest.kind == "slm" else check_bundle
    with progress_lines(stderr_console()) as progress:
        result = check_kind(opened, samples, progress)
    emit(check_json(result), as_json, lambda console: render_check(console, result))
    if not result.ok:
        raise typer.Exit(1)


def check_json(result: CheckResult) -> dict[str, object]:
    """The result as JSON: stages, what was not run and why, ok."""
    return {
        "stages": [dataclasses.asdict(stage) for stage in result.stages],
        "not_run": result.not_run,
        "problems": list(result.problems),
        "ok": result.ok,
    }


def render_check(console: Console, result: CheckResult) -> None:
    """The stages as a table and a verdict."""
    for problem in result.problems:
        console.print(f"[red]damaged:[/red] {problem}")
    if result.problems:
        return
    console.print(stage_table(result))
    for name, reason in result.not_run.items():
        console.print(f"[yellow]{name} was not run:[/yellow] {reason}")
    console.print("[green]ok[/green]" if result.ok else "[red]the simulator disagrees with the CPU[/red]")


def stage_table(result: CheckResult) -> Table:
    """One row a stage."""
    from rich.table import Table

    table = Table("Stage", "Against", "Rows", "Cosine", "Worst row", "SQNR, dB", "Top-1", title="Parity")
    for stage in result.stages:
        table.add_row(
            stage.name,
            stage.reference,
            str(stage.samples),
            f"{stage.cosine:.6f}",
            f"{stage.lowest_cosine:.6f}",
            f"{stage.sqnr_db:.1f}",
            "-" if stage.top1_agreement is None else f"{stage.top1_agreement:.1%}",
        )
    return table
