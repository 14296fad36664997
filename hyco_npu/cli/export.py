"""`hyco-npu export`: from a checkpoint to a bundle that a phone could run."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, stderr_console

if TYPE_CHECKING:
    from rich.console import Console

    from export.mtp.options import MtpExportResult

app = typer.Typer(
    no_args_is_help=True,
    help="Turn checkpoints into bundles of NPU graphs, tables and manifests.",
    epilog="Example: hyco-npu export mtp --bits 4",
)


class TargetChoice(str, Enum):
    """Chips that a graph can be compiled for."""

    SM8850 = "sm8850"
    SM8750 = "sm8750"
    SM8650 = "sm8650"


class PositionChoice(str, Enum):
    """Position of the head's query: the bonus token's own (transformers), or that of the row before it."""

    P = "p"
    P_MINUS_1 = "p-1"


@command(app, "mtp", example="hyco-npu export mtp --bits 4 --target sm8850 --out my.bundle")
def mtp(
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Head: a folder or a Hugging Face id.", show_default="the embedded family's head"),
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(
            help="Its verifier, for the embedding table: a folder or an id.", show_default="the family's, for its head"
        ),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits of the weights: 4 or 8.")] = 4,
    kv_bits: Annotated[int, typer.Option(help="Bits of the keys and values: 16 or 8 (a faster step).")] = 16,
    keep_set: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|N",
            help="Tokens the head can draft: a keep-set file, or the N most frequent of the calibration texts.",
            show_default="86016, or 3/4 of a smaller vocabulary",
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Keys and values that the graph attends to.")] = 1024,
    target: Annotated[TargetChoice, typer.Option(help="Chip to compile for.")] = TargetChoice.SM8850,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Ranges (.json), prompts (.jsonl, .txt), or "synthetic" for size and speed work.',
            show_default="the family's prompts",
        ),
    ] = None,
    position: Annotated[PositionChoice, typer.Option(help="Position rule of the query.")] = PositionChoice.P,
    table: Annotated[bool, typer.Option("--table/--no-table", help="Write the CPU's embedding table.")] = True,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the bundle.")] = Path("mtp.bundle"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of synthetic states.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Export an MTP head: W4 or W8 weights, 16-bit activations, 16- or 8-bit keys and values, compiled for Hexagon."""
    from export.mtp.export import export_mtp
    from hyco_npu.cli.progress import progress_lines
    from hyco_npu.defaults import mtp_export_options

    options = mtp_export_options(
        out,
        checkpoint,
        verifier,
        bits=bits,
        kv_bits=kv_bits,
        keep_set=keep_set,
        window=window,
        target=target.value,
        calibration=calibration,
        position_rule=position.value,
        table=table,
        force=force,
        seed=seed,
    )
    with progress_lines(stderr_console()) as progress:
        result = export_mtp(options, progress)
    emit(dataclasses.asdict(result), as_json, lambda console: render_export(console, result))


def render_export(console: Console, result: MtpExportResult) -> None:
    """The result as a table, with warnings below."""
    from rich.table import Table

    table = Table("Export", "Value", title=f"MTP head, W{result.bits}, KV{result.kv_bits}, for {result.target}")
    compiled = result.graph_bytes is not None
    rows = {
        "bundle": result.bundle,
        "compiled graph": f"{result.graph_bytes:,} bytes" if compiled else "not compiled",
        "embedding table": f"{result.lut_bytes:,} bytes",
        "keep set": f"{result.keep_set_size:,} tokens ({result.keep_set_source})",
        "calibration": result.calibration,
        "compile time on this host": f"{result.compile_s:.1f} s" if result.compile_s is not None else "-",
        "peak memory": f"{result.peak_rss_bytes / 1e9:.2f} GB",
        "nodes on / off the NPU": f"{result.nodes_on_npu} / {result.nodes_off_npu}" if compiled else "-",
        "QNN": result.qnn_version or "-",
        "largest error against transformers (fp32)": f"{result.parity_max_abs_error:.2e}",
        "on a phone": result.measured_on_device,
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for warning in result.warnings:
        console.print(f"[yellow]warning:[/yellow] {warning}")
