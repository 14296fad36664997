"""Measurements by hand: blocks with given times, on a cool phone or on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_runner.devices import Identity
from device_runner.facts import Battery, Core, Facts, Sensor, Thermal
from device_runner.measurement import (
    Block,
    BundlePair,
    DraftedTree,
    GraphLoad,
    Measurement,
    RoundSample,
    RunnerInfo,
    TreeCheck,
)
from device_runner.thermal_gate import CoolDown, ThermalReading
from export.estimate.estimate import Estimate
from export.estimate.graph import EstimateOptions, GraphEstimate
from export.estimate.round import drafting_round

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SLOW_FIRST = (1000.0, 10.0, 10.0, 11.0, 10.0, 10.0)
"""Case 56: the first iteration pays for loading; the median of the rest is 10."""
SHARES = {"mtp_step_1": 0.125, "mtp_step_2": 0.125, "slm_pass_1": 0.5, "tables": 0.125, "tree": 0.109375}
"""Parts of a round, 0.984375 of it: exact in binary."""
STEADY = (50.0, 20.0, 20.5, 19.5, 20.25, 19.75, 20.0, 20.5, 19.5, 20.25, 19.75, 20.0, 20.5)
TREE = DraftedTree((5, 6), (None, 0), (0.0, -0.5), ("root", "mtp"))
IDENTITY = Identity("SM-S948B", "SM8850", "660", "16", "arm64-v8a", "samsung/x")
PHONE_CORES = (
    Core(0, True, 500, "walt", 600_000, 3_600_000, 3_600_000),
    Core(6, True, 1024, "walt", 900_000, 4_700_000, 4_700_000),
)


def runner(provider: str = "htp", **changes: Any) -> RunnerInfo:
    """A runner on a phone for htp, else on this machine."""
    on_phone = provider == "htp"
    told = RunnerInfo(
        version="0.1.0",
        provider=provider,
        ort_version="1.32.0",
        abi="arm64-v8a" if on_phone else "x86_64-linux",
        qnn_build=None if provider == "cpu" else "v2.51.0.260929181845",
        perf_mode="burst" if on_phone else None,
        cpu_mask=None,
        threads=1,
    )
    return replace(told, **changes)


def facts(status: int = 0, skin_c: float = 30.0, **battery: Any) -> Facts:
    """A cool phone on its own battery, with full clocks."""
    sensors = (Sensor("SKIN", "skin", skin_c, status), Sensor("AP", "cpu", skin_c + 8, 0))
    told = Battery(level_percent=80, temp_c=28.0, voltage_mv=4200, powered_by=(), updates_stopped=False)
    return Facts(Thermal(status, False, True, sensors), replace(told, **battery), PHONE_CORES, "Enforcing")


def rounds(
    times: Sequence[float],
    *,
    start_ns: int = 0,
    shares: Mapping[str, float] = SHARES,
    matched: Callable[[int], int | None] = lambda number: number % 4,
) -> tuple[RoundSample, ...]:
    """Rounds of these milliseconds, one millisecond apart; `shares` of each are its parts."""
    made, at = [], start_ns
    for number, total in enumerate(times):
        parts = {name: total * share for name, share in shares.items()}
        made.append(RoundSample(number, 0, at, total, parts, matched(number), TREE))
        at += round((total + 1) * 1e6)
    return tuple(made)


def block(
    label: str = "A", times: Sequence[float] = STEADY, *, info: RunnerInfo | None = None, **changes: Any
) -> Block:
    """A timed block; on a phone with its facts and a gate that passed at once."""
    info = info or runner()
    on_phone = info.abi == "arm64-v8a"
    made = Block(
        bundle=label,
        runner=info,
        loads=(GraphLoad("mtp_step", info.provider, 12.5, 1.5), GraphLoad("slm_draft", info.provider, 80.0, 9.0)),
        rounds=rounds(times),
        profiled=False,
        cool_down=CoolDown(0.0, (ThermalReading(0.0, 0, 30.0),)) if on_phone else None,
        before=facts(skin_c=30.0) if on_phone else None,
        after=facts(skin_c=33.0) if on_phone else None,
    )
    return replace(made, **changes)


def measurement(*blocks: Block, **changes: Any) -> Measurement:
    """Blocks one after the other on the device's clock, with trees that are the host's; 1 round of warm-up."""
    in_time, start_ns = [], 10**12
    for one in blocks:
        first = one.rounds[0].start_ns if one.rounds else 0
        moved = tuple(replace(sample, start_ns=sample.start_ns - first + start_ns) for sample in one.rounds)
        in_time.append(replace(one, rounds=moved))
        start_ns += 10**12
    labels = sorted({one.bundle for one in blocks})
    on_phone = bool(blocks) and blocks[0].runner.abi == "arm64-v8a"
    made = Measurement(
        device="R5CX 1:2" if on_phone else "/tmp/local",
        identity=IDENTITY if on_phone else None,
        pairs=tuple(pair(label) for label in labels),
        rounds_file=Path("rounds.safetensors"),
        rounds_sha256="c" * 64,
        config="hyco",
        blocks=tuple(in_time),
        tree_checks=tuple(TreeCheck(label, "simulator", (1.0, 0.97), 0.9, True) for label in labels),
        warm_up_rounds=1,
        usb_powered=False if on_phone else None,
    )
    return replace(made, **changes)


def pair(label: str) -> BundlePair:
    """Bundles that are only named."""
    digit = {"A": "a", "B": "b"}[label]
    return BundlePair(label, Path(f"mtp-{digit}.bundle"), Path(f"slm-{digit}.bundle"), digit * 64, digit * 63 + "0")


def estimate(scale: float = 1.0, *, missing_costs: int = 0, kinds: Sequence[str] = ("mtp", "slm")) -> Estimate:
    """2 ms a step and 8 ms a tree pass before the scale, 10 % of doubt, floors of 1 and 4 ms; prefill is no part."""
    options = EstimateOptions(bandwidth_gbps=60.0, scale=scale)
    named = {"mtp": [("mtp_step", 1, 2e3)], "slm": [("slm_draft", 32, 8e3), ("slm_prefill", 128, 30e3)]}
    graphs = tuple(
        _graph(name, kind, rows, us * scale, missing_costs) for kind in kinds for name, rows, us in named[kind]
    )
    return Estimate(graphs, drafting_round(graphs), "v2.51.0.260929181845", options)


def _graph(name: str, kind: str, rows: int, us: float, missing_costs: int) -> GraphEstimate:
    counts = dict.fromkeys(
        ("cycles", "cycles_low", "cycles_high", "fill_bytes", "input_fill_bytes", "intermediate_fill_bytes",
         "spill_bytes", "intermediate_spill_bytes", "output_spill_bytes", "weight_bytes", "boundary_bytes",
         "binary_bytes"), 0
    )  # fmt: skip
    times = {"us": us, "us_low": 0.9 * us, "us_high": 1.1 * us, "floor_us": us / 2, "ratio": 2.0}
    return GraphEstimate(
        name=name, kind=kind, rows=rows, label="estimate", missing_costs=missing_costs, **counts, **times
    )
