"""`hyco-npu estimate`: what a drafting round costs, as far as that can be known without a phone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, stderr_console
from quant.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from export.estimate import Estimate, GraphEstimate
    from hyco_npu.bench.scale_file import ScaleFile


app = typer.Typer()


@command(app, "estimate", example="hyco-npu estimate mtp.bundle --bandwidth-gbps 60 --chart estimate.png")
def estimate(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="Folder of a bundle: the MTP head's, the SLM's or both.")
    ],
    bandwidth_gbps: Annotated[
        float | None,
        typer.Option(
            "--bandwidth-gbps",
            help="Memory bandwidth that sets the floor, in 1e9 bytes a second.",
            show_default="60, an assumption for a phone with LPDDR5X",
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(help="Factor for all times, fitted on a phone; 1 leaves them alone.", show_default="1"),
    ] = None,
    scale_file: Annotated[
        Path | None,
        typer.Option("--scale-file", metavar="FILE", help="Take the factor from a file of `bench --fit-scale`."),
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Save a bar chart: floor beside estimate.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the latency of a bundle's graphs and of a drafting round: the compiler's figures for a proxy chip."""
    from export.bundle import open_bundle
    from export.estimate import EstimateOptions, estimate_bundles, save_chart
    from export.estimate.chart import require_chart_path
    from hyco_npu.cli.progress import progress_lines

    fitted = _read_scale(scale, scale_file)
    factor = scale if fitted is None else fitted.scale
    given = {"bandwidth_gbps": bandwidth_gbps, "scale": factor}
    options = EstimateOptions(**{option: value for option, value in given.items() if value is not None})
    if chart is not None:
        require_chart_path(chart, bundles)
    opened = [open_bundle(folder) for folder in bundles]
    with progress_lines(stderr_console()) as progress:
        result = estimate_bundles(opened, options, progress)
    if chart is not None:
        save_chart(result, chart)
    remark = None if fitted is None else scale_remark(fitted, result)
    described = {**estimate_json(result, chart), "scale_from": None if fitted is None else fitted.model_dump()}
    emit({**described, "scale_remark": remark}, as_json, lambda console: _render(console, result, chart, remark))


def scale_remark(fitted: ScaleFile, result: Estimate) -> str:
    """Where a factor comes from, and whether it was fitted to this compiler's estimates."""
    told = f"scale {fitted.scale:g} fitted on {fitted.device}, {fitted.when}"
    if fitted.qnn_version != result.qnn_version:
        told += f", to estimates of QNN {fitted.qnn_version}: those of {result.qnn_version} may differ, fit it again"
    return told


def estimate_json(result: Estimate, chart: Path | None) -> dict[str, object]:
    """The result as JSON; times in microseconds, all of them labelled."""
    from export.estimate import PROXY, VTCM_MB

    return {
        "label": result.label,
        "graphs": [dataclasses.asdict(graph) for graph in result.graphs],
        "round_us": result.round.us,
        "round_us_low": result.round.us_low,
        "round_us_high": result.round.us_high,
        "round_parts": [dataclasses.asdict(part) for part in result.round.parts],
        "round_lacks": list(result.round.missing_kinds),
        "floor_us": result.round.floor_us,
        "ratio": result.round.ratio,
        "qnn_version": result.qnn_version,
        "proxy": {"soc_model": PROXY.soc_model, "htp_arch": f"v{PROXY.htp_arch}", "vtcm_mb": VTCM_MB},
        "scale": result.options.scale,
        "bandwidth_gbps": result.options.bandwidth_gbps,
        "unreliable": result.unreliable,
        "measured_on_device": "not measured",
        "chart": chart,
    }


def render_estimate(console: Console, result: Estimate, chart: Path | None) -> None:
    """The graphs as tables, the round, and what the figures rest on."""
    from export.estimate import PROXY

    console.print(_graph_table(result))
    console.print(_traffic_table(result))
    console.print(_round_line(result), highlight=False)
    for kind in result.round.missing_kinds:
        console.print(f"[yellow]the round is not whole:[/yellow] no {kind} bundle was given")
    if result.unreliable:
        names = ", ".join(graph.name for graph in result.graphs if graph.missing_costs)
        console.print(f"[red]unreliable:[/red] the compiler has no cost for some operations of {names}")
    console.print(
        f"QNN {result.qnn_version} for soc_model {PROXY.soc_model}, a proxy: none of the phones' chips. The floor is "
        f"that of {result.options.bandwidth_gbps:g} GB/s, an assumption. On a phone: not measured.",
        highlight=False,
    )
    if chart is not None:
        console.print(f"chart: {chart}", highlight=False)


def _read_scale(scale: float | None, path: Path | None) -> ScaleFile | None:
    """The fitted factor, if one is asked for; raises UsageError for two factors or a file that is none."""
    if path is None:
        return None
    if scale is not None:
        raise UsageError(f"--scale {scale:g} and --scale-file {path} both give a factor; use one")
    from hyco_npu.bench.scale_file import read_scale

    return read_scale(path)


def _render(console: Console, result: Estimate, chart: Path | None, remark: str | None) -> None:
    render_estimate(console, result, chart)
    if remark is not None:
        console.print(remark, markup=False, highlight=False)


def _graph_table(result: Estimate) -> Table:
    table = _table("One pass", result, "Rows", "ms", "lower", "upper", "M cycles", "floor, ms", "x floor", "no cost")
    for graph in result.graphs:
        table.add_row(
            graph.name,
            str(graph.rows),
            *(f"{us / 1e3:.3f}" for us in (graph.us, graph.us_low, graph.us_high)),
            f"{graph.cycles / 1e6:.2f}",
            f"{graph.floor_us / 1e3:.3f}",
            f"{graph.ratio:.2f}",
            f"{graph.missing_costs} ops" if graph.missing_costs else "-",
        )
    return table


def _traffic_table(result: Estimate) -> Table:
    moved = ("fill, input", "fill, again", "spill", "spill, output")
    table = _table("MB to and from memory", result, "weights", "in and out", *moved)
    for graph in result.graphs:
        table.add_row(graph.name, *(f"{size / 1e6:.2f}" for size in _traffic(graph)))
    return table


def _table(title: str, result: Estimate, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=f"{title}: {result.label}")
    table.add_column("Graph", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _traffic(graph: GraphEstimate) -> tuple[int, ...]:
    return (
        graph.weight_bytes,
        graph.boundary_bytes,
        graph.input_fill_bytes,
        graph.intermediate_fill_bytes,
        graph.intermediate_spill_bytes,
        graph.output_spill_bytes,
    )


def _round_line(result: Estimate) -> str:
    one = result.round
    low, middle, high, floor = (us / 1e3 for us in (one.us_low, one.us, one.us_high, one.floor_us))
    return (
        f"one drafting round ({one}): {middle:.2f} ms ({low:.2f} to {high:.2f}), {one.ratio:.2f} times its floor of "
        f"{floor:.2f} ms: {result.label}"
    )
