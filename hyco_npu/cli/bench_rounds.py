"""`hyco-npu bench` where the native runner runs: whole drafting rounds, measured, judged, reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from hyco_npu.cli.files import require_output_file
from hyco_npu.cli.output import emit, stderr_console
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from device_runner.bench_run import BenchDevice
    from export.estimate import Estimate
    from hyco_npu.bench.measure import BenchRequest, CheckOptions, NewRounds
    from hyco_npu.cli.decode_options import ProviderChoice


@dataclass(frozen=True)
class Output:
    """Where results go. estimate: None where the provider decides."""

    out: Path
    force: bool
    estimate: bool | None
    fit_scale: Path | None
    as_json: bool


@dataclass(frozen=True)
class RoundsWanted:
    """The command line, sorted.

    bundles: head, SLM, the one of pair B. file: recorded rounds. recording: what was said of recording some. run:
    fields of BenchOptions. count: timed rounds of a block. limits: those of Limits that were set.
    """

    device: str | None
    provider: ProviderChoice
    runner: Path | None
    bundles: tuple[Path | None, Path | None, Path | None]
    file: Path | None
    recording: Mapping[str, Any]
    run: Mapping[str, Any]
    perf_modes: tuple[str, ...]
    count: int | None
    warm_up_rounds: int
    check: CheckOptions
    limits: Mapping[str, Any]
    output: Output


def bench_rounds(wanted: RoundsWanted) -> None:
    """Measure, judge, report; exit code 1 for an invalid result, after the report was written."""
    from device_runner.admission import require_sound
    from export.bundle import open_bundle
    from hyco_npu.bench.choose import opened_device
    from hyco_npu.bench.measure import admitted, measure
    from hyco_npu.bench.reasons import limits_for
    from hyco_npu.bench.report import render
    from hyco_npu.bench.report_folder import report_folder, write_report
    from hyco_npu.bench.result import evaluate
    from hyco_npu.bench.scale_file import fit_scale
    from hyco_npu.cli.progress import progress_lines

    output, source = wanted.output, _source(wanted)
    for folder in filter(None, wanted.bundles):
        require_sound(open_bundle(folder))
    if output.fit_scale is not None:
        require_output_file(output.fit_scale, "--fit-scale", ".json", force=output.force)
    with (
        report_folder(output.out, force=output.force) as report,
        opened_device(wanted.device) as device,
        progress_lines(stderr_console()) as progress,
    ):
        request = _request(wanted, source, device, progress)
        chip = admitted(request, progress)
        # before the device's work, which a failing compiler would waste
        estimate = _estimate(wanted, request, progress)
        limits = limits_for(request.options.provider, wanted.limits)
        result = evaluate(measure(request, chip, report, progress), limits, estimate)
        write_report(report, result)
    emit({**result.to_json(), "report": output.out}, output.as_json, lambda console: render(console, result))
    if not output.as_json:
        stderr_console().print(f"report: {output.out}", highlight=False, markup=False, soft_wrap=True)
    if output.fit_scale is not None and result.valid:
        fit_scale(result, output.fit_scale)
    if not result.valid:
        raise typer.Exit(1)


def _request(
    wanted: RoundsWanted, source: Path | NewRounds, device: BenchDevice, progress: Callable[[str], None]
) -> BenchRequest:
    from device_runner.bench_run import BenchOptions
    from hyco_npu.bench.choose import chosen_modes, chosen_provider, chosen_runner, named_provider
    from hyco_npu.bench.family import chosen_pairs
    from hyco_npu.bench.measure import BenchRequest

    progress("looking for the native runner")
    runner = chosen_runner(wanted.runner, device.identity)
    provider = chosen_provider(named_provider(wanted.provider.value), runner)
    if wanted.perf_modes and provider != "htp":
        progress(f"--perf-mode is the NPU's and means nothing to the provider {provider}: recorded as none")
    if wanted.output.fit_scale is not None and provider != "htp":
        raise UsageError(
            f"--fit-scale: only a phone's NPU tells how far the estimate is off; the provider is {provider}"
        )
    return BenchRequest(
        device=device,
        runner=runner,
        pairs=chosen_pairs(*wanted.bundles, progress),
        source=source,
        options=BenchOptions(provider, 1, perf_modes=chosen_modes(wanted.perf_modes, provider), **wanted.run),
        check=wanted.check,
        out=wanted.output.out,
        count=wanted.count,
        warm_up_rounds=wanted.warm_up_rounds,
    )


def _source(wanted: RoundsWanted) -> Path | NewRounds:
    """A file as it is, or what to record; raises UsageError for options that a file has decided already."""
    from hyco_npu.bench.measure import NewRounds
    from hyco_npu.bench.recorder import RecordingOptions
    from hyco_npu.decode.config import load_config
    from hyco_npu.family import HELD_OUT_PROMPTS, VERIFIER_DIR

    if wanted.file is not None:
        for name in wanted.recording:
            option = name.replace("_", "-")
            raise UsageError(f"--rounds {wanted.file} was recorded with a --{option} of its own: leave one of them out")
        return wanted.file
    given = {"config": "hyco", "verifier": VERIFIER_DIR, "prompts": HELD_OUT_PROMPTS, **wanted.recording}
    config = load_config(given.pop("config"))
    return NewRounds(config, RecordingOptions(**given))


def _estimate(wanted: RoundsWanted, request: BenchRequest, progress: Callable[[str], None]) -> Estimate | None:
    """Of pair A; without a wish for the NPU alone, and only where the compiler is there to ask."""
    from export.engines.htp import why_unavailable
    from export.estimate import EstimateOptions, estimate_bundles

    asked = wanted.output.estimate
    if asked is None and wanted.output.fit_scale is None:
        asked = request.options.provider == "htp" and why_unavailable() is None
    if asked is False:
        return None
    return estimate_bundles(request.pairs[0].bundles, EstimateOptions(), progress)
