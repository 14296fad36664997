"""`hyco-npu bench`: drafting rounds timed on a device, with everything that says whether the times may be believed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hyco_npu.cli import bench_options as o
from hyco_npu.cli.command import command
from hyco_npu.cli.decode_options import ProviderChoice
from hyco_npu.cli.output import JsonOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hyco_npu.cli.bench_graphs import GraphsWanted
    from hyco_npu.cli.bench_rounds import RoundsWanted

app = typer.Typer()

_DEFAULTS = {"blocks": 4, "warm_up_rounds": 3, "threads": 1}
"""Of options that mean nothing to graphs one by one: another value was given."""


@command(app, "bench", example="hyco-npu bench --device local --provider cpu --texts 2 --out report")
def bench(
    device: o.DeviceOption = None,
    provider: o.ProviderOption = ProviderChoice.AUTO,
    runner: o.RunnerOption = None,
    qairt_sdk: o.QairtSdkOption = None,
    mtp_bundle: o.MtpBundleOption = None,
    slm_bundle: o.SlmBundleOption = None,
    against: o.AgainstOption = None,
    rounds: o.RoundsOption = None,
    config: o.ConfigOption = None,
    verifier: o.VerifierOption = None,
    prompts: o.PromptsOption = None,
    texts: o.TextsOption = None,
    max_new_tokens: o.TokensOption = None,
    count: o.CountOption = None,
    blocks: o.BlocksOption = _DEFAULTS["blocks"],
    warm_up_rounds: o.WarmUpOption = _DEFAULTS["warm_up_rounds"],
    perf_mode: o.PerfModeOption = None,
    cpu_mask: o.CpuMaskOption = None,
    threads: o.ThreadsOption = _DEFAULTS["threads"],
    profile: o.ProfileOption = False,
    silence: o.SilenceOption = None,
    keep: o.KeepOption = False,
    gate_timeout: o.GateTimeoutOption = 600.0,
    max_skin: o.MaxSkinOption = None,
    no_gate: o.NoGateOption = False,
    check_rounds: o.CheckRoundsOption = None,
    agreement: o.AgreementOption = None,
    max_drift: o.MaxDriftOption = None,
    min_rounds: o.MinRoundsOption = 10,
    out: o.OutOption = None,
    force: o.ForceOption = False,
    estimate: o.EstimateOption = None,
    fit_scale: o.FitScaleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time whole drafting rounds on a phone (or here): per part, raw series kept, trees compared with the host's first.

    A run that was warm, drifting, or drew other trees is reported as invalid, with exit code 1.
    """
    given = {**locals(), "out": out or Path(f"hyco-bench-{datetime.now(UTC):%Y%m%d-%H%M%S}")}
    from hyco_npu.cli.bench_graphs import bench_graphs, one_by_one
    from hyco_npu.cli.bench_rounds import bench_rounds

    if one_by_one(device, runner, qairt_sdk):
        bench_graphs(_graphs_wanted(given), _of_rounds_alone(given))
    else:
        bench_rounds(_rounds_wanted(given))


_RECORDING = ("config", "verifier", "prompts", "texts", "max_new_tokens")


def _rounds_wanted(given: Mapping[str, Any]) -> RoundsWanted:
    from hyco_npu.bench.measure import CheckOptions
    from hyco_npu.cli.bench_rounds import Output, RoundsWanted

    names = ("blocks", "cpu_mask", "threads", "profile", "keep")
    return RoundsWanted(
        device=given["device"],
        provider=given["provider"],
        runner=given["runner"],
        bundles=(given["mtp_bundle"], given["slm_bundle"], given["against"]),
        file=given["rounds"],
        recording={name: given[name] for name in _RECORDING if given[name] is not None},
        run={**{name: given[name] for name in names}, "silence_s": given["silence"], "gate": _gate(given)},
        perf_modes=tuple(given["perf_mode"] or ()),
        count=given["count"],
        warm_up_rounds=given["warm_up_rounds"],
        check=CheckOptions(given["check_rounds"], given["agreement"]),
        limits=_limits(given),
        output=Output(*(given[name] for name in ("out", "force", "estimate", "fit_scale", "as_json"))),
    )


def _graphs_wanted(given: Mapping[str, Any]) -> GraphsWanted:
    from hyco_npu.bench.reasons import limits_for
    from hyco_npu.cli.bench_graphs import GraphsWanted

    return GraphsWanted(
        device=given["device"],
        sdk=given["qairt_sdk"],
        bundles=(given["mtp_bundle"], given["slm_bundle"]),
        count=given["count"],
        perf_modes=tuple(given["perf_mode"] or ()),
        gate=_gate(given),
        keep=given["keep"],
        limits=limits_for("htp", _limits(given)),
        out=given["out"],
        force=given["force"],
        as_json=given["as_json"],
    )


def _of_rounds_alone(given: Mapping[str, Any]) -> dict[str, object]:
    """Options that mean nothing to graphs one by one, by name; None or False where they were not given."""
    names = (
        *_RECORDING,
        "rounds",
        "against",
        "cpu_mask",
        "profile",
        "silence",
        "check_rounds",
        "agreement",
        "fit_scale",
    )
    return {
        **{name: given[name] for name in names},
        **{name: given[name] != default for name, default in _DEFAULTS.items()},
        "estimate": given["estimate"] is not None,
        "provider": given["provider"] not in (ProviderChoice.AUTO, ProviderChoice.HTP),
    }


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("max_drift", "min_rounds") if given[name] is not None}


def _gate(given: Mapping[str, Any]) -> Any:
    from device_runner.thermal_gate import ThermalGate

    gate = ThermalGate(max_skin_c=given["max_skin"], timeout_s=given["gate_timeout"])
    return None if given["no_gate"] else gate
