"""`hyco-npu bench` where no runner of ours runs: a hosted phone (`--device hub:NAME`), or `--runner qnn-net-run`.

Both time each graph by itself. Options that only make sense for drafting rounds are refused, not ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from hyco_npu.cli.output import emit, stderr_console
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from device_runner.graph_series import GraphsMeasurement
    from device_runner.thermal_gate import ThermalGate
    from hyco_npu.bench.reasons import Limits

DEFAULT_RUNS = 100
_HUB, _NET_RUN = "hub:", "qnn-net-run"


@dataclass(frozen=True)
class GraphsWanted:
    """The command line as far as it concerns graphs. bundles: head, SLM; count: timed runs of each graph."""

    device: str | None
    sdk: Path | None
    bundles: tuple[Path | None, Path | None]
    count: int | None
    perf_modes: tuple[str, ...]
    gate: ThermalGate | None
    keep: bool
    limits: Limits
    out: Path
    force: bool
    as_json: bool

    @property
    def runs(self) -> int:
        """Runs of each graph: the timed ones and the first."""
        return (self.count or DEFAULT_RUNS) + 1


def one_by_one(device: str | None, runner: Path | None, sdk: Path | None) -> bool:
    """Whether the graphs are measured one by one; raises UsageError for options that contradict each other."""
    hub, net_run = device is not None and device.startswith(_HUB), runner is not None and str(runner) == _NET_RUN
    if hub and (runner is not None or sdk is not None):
        raise UsageError(f"--device {device} runs what AI Hub has: leave --runner and --qairt-sdk out")
    if net_run and sdk is None:
        raise UsageError(f"--runner {_NET_RUN} needs Qualcomm's SDK: --qairt-sdk DIR")
    if sdk is not None and not net_run:
        raise UsageError(f"--qairt-sdk goes with --runner {_NET_RUN}")
    return hub or net_run


def bench_graphs(wanted: GraphsWanted, elsewhere: Mapping[str, object]) -> None:
    """Measure, judge, report; exit code 1 for an invalid result.

    `elsewhere`: options of drafting rounds by name; one that was given is refused.
    """
    from calibration.jsonfile import replace_file
    from hyco_npu.bench.graph_report import evaluate_graphs, graphs_record, render_graphs
    from hyco_npu.bench.report_folder import report_folder
    from hyco_npu.cli.progress import progress_lines

    for name, value in elsewhere.items():
        if value not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} is for drafting rounds; here each graph runs on the NPU alone"
            )
    with report_folder(wanted.out, force=wanted.force) as folder, progress_lines(stderr_console()) as progress:
        result = evaluate_graphs(_measured(wanted, progress), wanted.limits)
        record = graphs_record(result)
        text = json.dumps(record, allow_nan=False, ensure_ascii=False, indent=2)
        replace_file(folder / "result.json", f"{text}\n".encode())
    emit({**record, "report": wanted.out}, wanted.as_json, lambda console: render_graphs(console, result))
    if not wanted.as_json:
        stderr_console().print(f"report: {wanted.out}", highlight=False, markup=False, soft_wrap=True)
    if not result.valid:
        raise typer.Exit(1)


def _measured(wanted: GraphsWanted, progress: Callable[[str], None]) -> GraphsMeasurement:
    from hyco_npu.bench.choose import opened_device
    from hyco_npu.bench.family import chosen_pairs

    if wanted.device is not None and wanted.device.startswith(_HUB):
        from device_runner.hub import HubOptions, profile_on_hub
        from device_runner.hub_client import connect

        if wanted.perf_modes or wanted.keep:
            raise UsageError("--perf-mode and --keep are for a phone of one's own: AI Hub decides that itself")
        connect()  # the family's bundles take minutes to export: a missing token is told before
        bundles = chosen_pairs(*wanted.bundles, None, progress)[0].bundles
        from device_runner.cache import cache_path

        options = HubOptions(iterations=wanted.runs, record=cache_path("hub.json"))
        return profile_on_hub(bundles, wanted.device.removeprefix(_HUB).strip(), options, progress)
    from device_runner.net_run import NetRunOptions, measure_with_net_run
    from device_runner.push import PushOptions

    if len(wanted.perf_modes) > 1 or wanted.sdk is None:
        raise UsageError(f"--runner {_NET_RUN} takes one --perf-mode at a time")
    net_run = NetRunOptions(
        inferences=wanted.runs,
        perf_profile=wanted.perf_modes[0] if wanted.perf_modes else "burst",
        gate=wanted.gate,
        push=PushOptions("net-run", wanted.keep),
    )
    with opened_device(wanted.device) as device:
        bundles = chosen_pairs(*wanted.bundles, None, progress)[0].bundles
        return measure_with_net_run(device, bundles, wanted.sdk, net_run, progress)
