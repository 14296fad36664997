"""`hyco-npu export slm`: the E2B QAT checkpoint, its codes bit for bit, as two graphs that share their weights."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.export import TargetChoice
from hyco_npu.cli.output import JsonOption, emit, stderr_console

if TYPE_CHECKING:
    from rich.console import Console

    from export.slm.options import SlmExportResult


app = typer.Typer()


class TwoBitChoice(str, Enum):
    """How 2-bit codes are stored: in 2 bits as HTP's own weights, in 4, or in 2 as MatMulNBits."""

    NATIVE = "native"
    INT4 = "int4"
    NBITS = "nbits"


class OnOff(str, Enum):
    """A switch with a name for both sides."""

    ON = "on"
    OFF = "off"


@command(app, "slm", example="hyco-npu export slm --rows 32 --two-bit native --out slm.bundle")
def slm(
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="SLM with quant_method gemma: a folder or a Hugging Face id.", show_default="the embedded family's SLM"
        ),
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(
            help="Verifier whose answers are calibrated on and counted: a folder or an id.",
            show_default="the family's, for its SLM; else prompts without answers",
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Rows of the draft graph: tokens to catch up with, root, chain, siblings; or a beam.")
    ] = 32,
    prefill_rows: Annotated[int, typer.Option(help="Rows of the prefill graph.")] = 128,
    two_bit: Annotated[
        TwoBitChoice,
        typer.Option(help="Storage of 2-bit codes: 2 bits as HTP's own weights, 4 bits, or 2 bits as MatMulNBits."),
    ] = TwoBitChoice.NATIVE,
    head_bits: Annotated[
        int | None,
        typer.Option(help="Bits that a code of the output layer takes: 2, 4 or 8.", show_default="as --two-bit says"),
    ] = None,
    activation_clip: Annotated[
        OnOff, typer.Option(help="Keep the int8 bounds that the weights were trained under.")
    ] = OnOff.ON,
    keep_set: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|N",
            help="Tokens the SLM can draft: a keep-set file, or the N most frequent of the calibration texts.",
            show_default="86016, or 3/4 of a smaller vocabulary",
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Earlier tokens that the graphs attend to.")] = 1024,
    target: Annotated[TargetChoice, typer.Option(help="Chip to compile for.")] = TargetChoice.SM8850,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Ranges (.json), prompts (.jsonl, .txt), or "synthetic" for size and speed work.',
            show_default="the family's prompts",
        ),
    ] = None,
    table: Annotated[bool, typer.Option("--table/--no-table", help="Write the CPU's two embedding tables.")] = True,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the bundle.")] = Path("slm.bundle"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of synthetic texts and of the siblings in checks.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Export an SLM: the checkpoint's own 2/4/8-bit codes, 16-bit activations, 8-bit KV cache, compiled for Hexagon."""
    from export.slm.export import export_slm
    from hyco_npu.cli.progress import progress_lines
    from hyco_npu.defaults import slm_export_options

    options = slm_export_options(
        out,
        checkpoint,
        verifier,
        rows=rows,
        prefill_rows=prefill_rows,
        two_bit=two_bit.value,
        head_bits=head_bits,
        activation_clip=activation_clip is OnOff.ON,
        keep_set=keep_set,
        window=window,
        target=target.value,
        calibration=calibration,
        table=table,
        force=force,
        seed=seed,
    )
    with progress_lines(stderr_console()) as progress:
        result = export_slm(options, progress)
    emit(dataclasses.asdict(result), as_json, lambda console: render_slm_export(console, result))


def render_slm_export(console: Console, result: SlmExportResult) -> None:
    """The result as a table, with warnings below."""
    from rich.table import Table

    table = Table("Export", "Value", title=f"SLM, {result.rows} and {result.prefill_rows} rows, for {result.target}")
    compiled = result.graph_bytes is not None
    kinds = ", ".join(f"{kind} {size:,}" for kind, size in result.weight_bytes_by_kind.items())
    rows = {
        "bundle": result.bundle,
        "compiled, both graphs in one": f"{result.graph_bytes:,} bytes" if compiled else "not compiled",
        "each alone": f"{result.draft_alone_bytes:,} + {result.prefill_alone_bytes:,} bytes" if compiled else "-",
        "weights of the draft graph": f"{result.weight_bytes:,} bytes ({kinds})",
        "2-bit codes stored as": f"{result.two_bit}, the output layer's in {result.head_bits} bits",
        "activation clip": "on" if result.activation_clip else "off",
        "token table, per-layer table": f"{result.lut_bytes:,}, {result.per_layer_lut_bytes:,} bytes",
        "keep set": f"{result.keep_set_size:,} tokens ({result.keep_set_source})",
        "calibration": result.calibration,
        "compile time on this host": f"{result.compile_s:.1f} s" if result.compile_s is not None else "-",
        "peak memory": f"{result.peak_rss_bytes / 1e9:.2f} GB",
        "nodes on / off the NPU": f"{result.nodes_on_npu} / {result.nodes_off_npu}" if compiled else "-",
        "QNN": result.qnn_version or "-",
        "largest error against transformers (fp32)": f"{result.parity_max_abs_error:.2e}",
        "same top token as transformers with 8-bit activations": f"{result.parity_top1_with_rounding:.1%}",
        "on a phone": result.measured_on_device,
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for warning in result.warnings:
        console.print(f"[yellow]warning:[/yellow] {warning}")
