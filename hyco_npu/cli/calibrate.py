"""`hyco-npu calibrate`: ranges of every activation over prompts, for `export ... --calibration`."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.export import PositionChoice
from hyco_npu.cli.export_slm import OnOff, TwoBitChoice
from hyco_npu.cli.output import JsonOption, emit, stderr_console
from hyco_npu.family import CALIBRATION_PROMPTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from calibration.report import CalibrationResult
    from export.calibrating.options import CalibrationOptions
    from export.calibrating.shards import Calibrated

app = typer.Typer(
    no_args_is_help=True,
    help="Ranges of every activation over prompts: what export takes as --calibration.",
    epilog="Example: hyco-npu calibrate mtp --out ranges.json",
)


class MethodChoice(str, Enum):
    """How a range is chosen from the values seen."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"


_SHOWN = 20

PromptsOption = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Prompts (.jsonl, .txt), or responses of `prompts generate`, which are not generated again.",
        show_default="the family's prompts",
    ),
]
MethodOption = Annotated[
    MethodChoice,
    typer.Option(help="Range: all values, all but a few, or the least squared error of the codes."),
]
PercentileOption = Annotated[float, typer.Option(help="Percent of the values that the percentile method keeps.")]
ShardOption = Annotated[
    str, typer.Option(metavar="I/N", help="Part of the prompts to run here; merge the parts with calibrate merge.")
]
JobsOption = Annotated[int, typer.Option(help="Parallel processes; the result does not depend on it.")]
OutOption = Annotated[
    Path, typer.Option(metavar="FILE.json", help="Ranges; observations, picture and keep set go beside them.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
KeepSetOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|N",
        help="Tokens that can be drafted: a keep-set file, or the N most frequent of prompts and answers.",
        show_default="86016, or 3/4 of a smaller vocabulary",
    ),
]


@command(app, "mtp", example="hyco-npu calibrate mtp --method percentile --jobs 2 --out ranges.json")
def mtp(
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Head: a folder or a Hugging Face id.", show_default="the embedded family's head"),
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(
            help="Its verifier, whose states it drafts from: a folder or an id.",
            show_default="the family's, for its head",
        ),
    ] = None,
    prompts: PromptsOption = CALIBRATION_PROMPTS,
    keep_set: KeepSetOption = None,
    window: Annotated[int, typer.Option(help="Keys and values that the graph attends to.")] = 1024,
    position: Annotated[PositionChoice, typer.Option(help="Position rule of the query.")] = PositionChoice.P,
    kv_bits: Annotated[
        int, typer.Option(help="Bits of keys and values, 16 or 8, as for export; the mse method depends on them.")
    ] = 16,
    method: MethodOption = MethodChoice.MINMAX,
    percentile: PercentileOption = 99.99,
    shard: ShardOption = "1/1",
    jobs: JobsOption = 1,
    out: OutOption = Path("ranges.json"),
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Calibrate an MTP head: chains drafted from real states of its verifier (hidden, embeddings, keys and values)."""
    from export.calibrating.mtp import calibrate_mtp
    from hyco_npu.defaults import mtp_export_options

    options = _options(prompts, keep_set, method, percentile, shard, jobs)
    settings = mtp_export_options(
        out, checkpoint, verifier, window=window, position_rule=position.value, kv_bits=kv_bits, table=False
    )
    _calibrate(lambda progress: calibrate_mtp(settings, options, progress), options, out, force, as_json)


@command(app, "slm", example="hyco-npu calibrate slm --method mse --jobs 2 --out ranges.json")
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
            help="Verifier that answers the prompts: a folder or an id.",
            show_default="the family's, for its SLM; else prompts without answers",
        ),
    ] = None,
    prompts: PromptsOption = CALIBRATION_PROMPTS,
    keep_set: KeepSetOption = None,
    rows: Annotated[int, typer.Option(help="Rows of the draft graph.")] = 32,
    window: Annotated[int, typer.Option(help="Earlier tokens that the graph attends to.")] = 1024,
    two_bit: Annotated[TwoBitChoice, typer.Option(help="Storage of 2-bit codes, as for export.")] = TwoBitChoice.NATIVE,
    head_bits: Annotated[
        int | None,
        typer.Option(help="Bits that a code of the output layer takes.", show_default="as --two-bit says"),
    ] = None,
    activation_clip: Annotated[
        OnOff, typer.Option(help="Keep the int8 bounds that the weights were trained under.")
    ] = OnOff.ON,
    method: MethodOption = MethodChoice.MINMAX,
    percentile: PercentileOption = 99.99,
    shard: ShardOption = "1/1",
    jobs: JobsOption = 1,
    out: OutOption = Path("ranges.json"),
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Calibrate an SLM: texts read in chunks, and a drafted tree behind each. Its 8-bit KV scales stay as they are."""
    from export.calibrating.slm import calibrate_slm
    from hyco_npu.defaults import slm_export_options

    options = _options(prompts, keep_set, method, percentile, shard, jobs)
    settings = slm_export_options(
        out,
        checkpoint,
        verifier,
        rows=rows,
        window=window,
        two_bit=two_bit.value,
        head_bits=head_bits,
        activation_clip=activation_clip is OnOff.ON,
    )
    _calibrate(lambda progress: calibrate_slm(settings, options, progress), options, out, force, as_json)


@command(
    app,
    "merge",
    example="hyco-npu calibrate merge a.observations.safetensors b.observations.safetensors --out ranges.json",
)
def merge(
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD...", help="Files of observations, one a shard.")],
    method: MethodOption = MethodChoice.MINMAX,
    percentile: PercentileOption = 99.99,
    out: OutOption = Path("ranges.json"),
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge shards of one calibration and choose ranges; a single file gets ranges by another method."""
    from calibration.observations import Observations, merge_all
    from calibration.range_methods import RangeMethod
    from calibration.report import write_calibration

    began = time.perf_counter()
    chosen = RangeMethod(method.value, percentile)
    _require_outputs(out, force)
    observations = merge_all([Observations.load(path) for path in shards])
    result = write_calibration(observations, out, chosen)
    _emit(result, {"seconds": time.perf_counter() - began}, None, as_json)


def _options(
    prompts: Path, keep_set: str | None, method: MethodChoice, percentile: float, shard: str, jobs: int
) -> CalibrationOptions:
    from calibration.range_methods import RangeMethod
    from export.calibrating.options import CalibrationOptions, Shard

    return CalibrationOptions(prompts, keep_set, RangeMethod(method.value, percentile), Shard.parse(shard), jobs)


def _calibrate(
    run: Callable[[Callable[[str], None]], Calibrated],
    options: CalibrationOptions,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    from calibration.report import write_calibration
    from hyco_npu.cli.progress import progress_lines

    began = time.perf_counter()
    keep_file = out.with_suffix(".keep_set.json")
    _require_outputs(out, force)
    with progress_lines(stderr_console()) as progress:
        calibrated = run(progress)
        progress("choosing ranges")
        result = write_calibration(calibrated.observations, out, options.method)
    if calibrated.counted:
        calibrated.keep_set.save(keep_file)
    further = {
        "keep_set": keep_file if calibrated.counted else Path(str(options.keep_set)),
        "shard": str(options.shard),
        "jobs": options.jobs,
        "seconds": time.perf_counter() - began,
    }
    _emit(result, further, calibrated.remark, as_json)


def _require_outputs(out: Path, force: bool) -> None:
    from calibration.report import output_paths
    from hyco_npu.cli.files import require_output_file

    for path in (*output_paths(out), out.with_suffix(".keep_set.json")):
        require_output_file(path, "--out", ".json" if path == out else path.suffix, force=force)


def _emit(result: CalibrationResult, further: dict[str, Any], remark: str | None, as_json: bool) -> None:
    fields = {**result.fields, **further, "remark": remark}
    emit(fields, as_json, lambda console: _render(console, fields))


def _render(console: Console, fields: dict[str, Any]) -> None:
    from rich.table import Table

    found = fields["suspicious"]
    console.print(
        f"{fields['out']}: ranges of {fields['tensors']} tensors ({fields['method']}), {len(fields['given'])} more are "
        f"given by the checkpoint; {fields['prompts']} of {fields['prompts_in_all']} prompts, "
        f"{fields['seconds']:.1f} s",
        highlight=False,
    )
    if found:
        table = Table("Tensor", "Why", "Low", "High", "99.99%", "Max / 99.99%", "Share", title="Ranges to look at")
        for one in found[:_SHOWN]:
            bound = one["bound"]
            why = one["kind"] if bound is None else f"{one['kind']}: bound {bound[0]:.4g}, {bound[1]:.4g}"
            ratio = "-" if one["ratio"] is None else f"{one['ratio']:.1f}"
            share = "-" if one["share"] is None else f"{one['share']:.2%}"
            table.add_row(one["name"], why, *(f"{one[key]:.4g}" for key in ("low", "high", "p9999")), ratio, share)
        console.print(table)
        if len(found) > _SHOWN:
            console.print(f"and {len(found) - _SHOWN} more; --json lists all", highlight=False)
    else:
        console.print("no suspicious range", highlight=False)
    console.print(f"observations: {fields['observations']}, picture: {fields['chart']}", highlight=False)
    if "keep_set" in fields:
        console.print(f"export with --calibration {fields['out']} --keep-set {fields['keep_set']}", highlight=False)
    if fields["remark"] is not None:
        console.print(f"[yellow]remark:[/yellow] {fields['remark']}")
