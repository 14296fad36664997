"""`hyco-npu sweep`: configurations times a grid of values on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.decode_options import HeadOption, SlmOption, VerifierOption
from hyco_npu.cli.output import JsonOption, emit, stderr_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

app = typer.Typer()


@command(app, "sweep", example="hyco-npu sweep plan.toml --out sweep --jobs 2")
def sweep(
    plan: Annotated[
        Path, typer.Argument(metavar="FILE.toml", exists=True, dir_okay=False, help="The plan: docs/decode-sweep.md.")
    ],
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of the result; finished settings lie in OUT.work.")
    ] = Path("sweep"),
    jobs: Annotated[
        int, typer.Option(min=1, help="Settings at a time, each in a process with its share of threads.")
    ] = 1,
    verifier: VerifierOption = None,
    mtp: HeadOption = None,
    slm: SlmOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier result.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run every setting of a plan on the same prompts: tokens per round, bytes, memory floor, ratios to a reference.

    A sweep that was broken off or whose plan changed runs only what is not finished yet.
    """
    from hyco_npu.cli.progress import progress_bar
    from hyco_npu.defaults import decode_models
    from hyco_npu.sweep.prepare import SweepOptions, prepare
    from hyco_npu.sweep.report import check_out

    check_out(out, force)
    options = SweepOptions(plan, out, decode_models("torch", verifier, mtp, slm).paths, jobs)
    prepared = prepare(options)
    with progress_bar(stderr_console(), "settings", prepared.different) as done:
        rows = prepared.run(done)
    emit({"out": out, "rows": rows}, as_json, lambda console: render_rows(console, rows, out))


def render_rows(console: Console, rows: Sequence[dict[str, Any]], out: Path) -> None:
    """The rows as a table."""
    from rich.table import Table

    from hyco_npu.cli.output import format_value

    varied = [key for key in rows[0] if "." in key]
    compared = "ratio" in rows[0]
    figures = ["MAT", "floor, ms", "graphs, MB", "up/down, B a round", *(["ratio"] if compared else [])]
    table = Table("Configuration", *varied, *figures)
    for row in rows:
        cells = [row["config"], *("" if row[key] is None else format_value(row[key]) for key in varied)]
        cells += [_value(row, "mat"), f"{row['floor_ms']:.4g}", f"{row['graph_bytes'] / 1e6:.4g}", _wire(row)]
        table.add_row(*cells, *([_value(row, "ratio")] if compared else []))
    console.print(table)
    console.print(
        "MAT: tokens per round with the bonus, and ratios to the reference, with 95 % intervals over prompts; floor: "
        "what memory bandwidth sets for a round's drafting, not measured",
        highlight=False,
    )
    console.print(f"{out}: sweep.csv, sweep.png, sweep.json", highlight=False)


def _value(row: dict[str, Any], name: str) -> str:
    return "-" if row[name] is None else f"{row[name]:.2f} ({row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f})"


def _wire(row: dict[str, Any]) -> str:
    return "-" if row["bytes_up"] is None else f"{row['bytes_up']:,.0f} / {row['bytes_down']:,.0f}"
