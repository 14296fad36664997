"""A whole measurement: admit, have rounds, let the host draft them, run them on the device, compare the trees.

Everything that can be refused is refused before the device is written to. What comes out is a Measurement; what it is
worth is judged elsewhere (hyco_npu.bench.result).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from device_runner.admission import admit
from device_runner.bench_run import BenchDevice, BenchOptions, BenchPlan, run_bench, usb_powered
from device_runner.measurement import Measurement
from device_runner.staging import stage, stage_rounds
from hyco_npu.bench.host import config_for, described, host_trees, reference_for, require_fit
from hyco_npu.bench.recorder import record_rounds
from hyco_npu.bench.report_folder import RAW_NAME, ROUNDS_NAME
from hyco_npu.bench.rounds import load_rounds
from hyco_npu.bench.trees import NEEDED, HostTrees, check_trees
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_runner.measurement import Block, TreeCheck
    from device_runner.runner_folder import RunnerFolder
    from device_runner.staging import Pair
    from export.engines.htp import Target
    from hyco_npu.bench.recorder import RecordingOptions
    from hyco_npu.bench.rounds import Rounds
    from hyco_npu.decode.config import DecodeConfig

_LOG = logging.getLogger(__name__)

_SIMULATED_CHECKS = 16
"""Rounds that are compared by default where the host drafts on the simulator: a round takes it from a second up."""


@dataclass(frozen=True)
class NewRounds:
    """Rounds to record: with which configuration, of what."""

    config: DecodeConfig
    recording: RecordingOptions


@dataclass(frozen=True)
class CheckOptions:
    """How trees are compared. rounds: how many; None: all, or a few on the simulator. agreement: the lowest share of
    common nodes that passes; None: the provider's (trees.NEEDED)."""

    rounds: int | None = None
    agreement: float | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(
                f"--check-rounds {self.rounds}: no time is shown without a comparison of trees; give 1 or more"
            )
        if self.agreement is not None and not 0 < self.agreement <= 1:
            raise UsageError(f"--agreement {self.agreement} is no share of nodes: give more than 0 and at most 1")


@dataclass(frozen=True)
class BenchRequest:
    """What is measured on what.

    source: a file of rounds, or what to record. options.rounds is not used: it follows from warm_up_rounds and count
    (timed rounds of a block; None: as many as the file has). out: where the report will lie.
    """

    device: BenchDevice
    runner: RunnerFolder
    pairs: tuple[Pair, ...]
    source: Path | NewRounds
    options: BenchOptions
    check: CheckOptions
    out: Path
    count: int | None = None
    warm_up_rounds: int = 3


def admitted(request: BenchRequest, progress: Callable[[str], None]) -> Target | None:
    """The chip whose binaries will be run (None on the CPU); raises as `device_runner.admission.admit`."""
    progress("checking bundles and runner")
    return admit(request.runner, request.options.provider, request.pairs, request.device.identity)


def measure(request: BenchRequest, chip: Target | None, folder: Path, progress: Callable[[str], None]) -> Measurement:
    """Measure what was admitted; recorded rounds and raw series are written into `folder`, which becomes request.out.

    Raises UsageError, BundleError or BenchError for what does not fit, before anything is pushed; DeviceError for what
    fails on the device.
    """
    with TemporaryDirectory(prefix="hyco-bench-") as scratch:
        staged = stage(Path(scratch), request.runner, request.pairs, request.options.provider)
        rounds = _have_rounds(request, folder, progress)
        for pair in request.pairs:
            require_fit(rounds, pair)
            config_for(rounds.config, pair)
        timed = rounds.count if request.count is None else request.count
        options = replace(request.options, rounds=timed + request.warm_up_rounds)
        hosts = {pair.label: _host(request, rounds, pair, options.rounds, progress) for pair in request.pairs}
        stage_rounds(Path(scratch), rounds.path)
        plan = BenchPlan(Path(scratch), request.runner, staged, chip)
        blocks = run_bench(request.device, plan, options, folder / RAW_NAME, progress)
    recorded = rounds.path.is_relative_to(folder)
    return Measurement(
        device=request.device.transport.name,
        identity=request.device.identity,
        pairs=tuple(map(described, request.pairs)),
        rounds_file=request.out.absolute() / ROUNDS_NAME if recorded else rounds.path.absolute(),
        rounds_sha256=rounds.sha256,
        config=rounds.config.name,
        blocks=blocks,
        tree_checks=tuple(_check(request, label, host, blocks) for label, host in hosts.items()),
        warm_up_rounds=request.warm_up_rounds,
        usb_powered=usb_powered(blocks),
        recorded_rounds=rounds.count,
    )


def _have_rounds(request: BenchRequest, folder: Path, progress: Callable[[str], None]) -> Rounds:
    source = request.source
    if isinstance(source, Path):
        return load_rounds(source)
    return record_rounds(folder / ROUNDS_NAME, source.config, request.pairs[0], source.recording, progress)


def _host(request: BenchRequest, rounds: Rounds, pair: Pair, run: int, progress: Callable[[str], None]) -> HostTrees:
    """`run`: rounds of a block; further ones are not compared."""
    provider, limit = request.options.provider, request.check.rounds
    reference = reference_for(provider, request.pairs)
    if reference == "cpu" and provider != "cpu":
        _LOG.warning(
            "the trees of %s are compared with those of the quantised graphs on the CPU: the simulator cannot run here",
            provider,
        )
    if limit is None:
        limit = _SIMULATED_CHECKS if reference == "simulator" else rounds.count
    limit = min(limit, rounds.count, run)
    progress(f"drafting {limit} rounds of pair {pair.label} on this machine ({reference})")
    return HostTrees(reference, host_trees(rounds, pair, reference, limit), rounds.count)


def _check(request: BenchRequest, label: str, host: HostTrees, blocks: tuple[Block, ...]) -> TreeCheck:
    needed = NEEDED[request.options.provider] if request.check.agreement is None else request.check.agreement
    return check_trees(label, [block for block in blocks if block.bundle == label], host, needed)
