"""Running a benchmark on a device: push, then one fresh process of the native runner for each block.

    for each block: wait until cool -> facts -> hyco_runner bench -> facts

Blocks of several bundle pairs and performance modes are interleaved and the order turned round each time (A B B A), so
that a phone that warms up favours none. Profiled blocks come last and are no timing. What a block printed is kept as
it came, beside. This module judges nothing; it refuses what is not whole.
"""

from __future__ import annotations

import logging
import posixpath
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.awake import kept_awake
from device_runner.errors import CommandError, FactError, ThermalGateError
from device_runner.facts import read_facts
from device_runner.measurement import Block
from device_runner.push import PushOptions, PushResult, pushed_folder
from device_runner.remote_files import pull_verified
from device_runner.runner_command import SILENCE_S, RunnerSetup
from device_runner.runner_lines import RunnerLines
from device_runner.staging import ROUNDS_NAME, RUNNER_DIR
from device_runner.thermal_gate import wait_until_cool
from device_runner.transport import Timeout
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from device_runner.devices import Identity
    from device_runner.runner_folder import Provider, RunnerFolder
    from device_runner.staging import StagedPair
    from device_runner.thermal_gate import CoolDown, ThermalGate
    from device_runner.transport import Command, Transport
    from export.engines.htp import Target

_LOG = logging.getLogger(__name__)

PERF_MODES = ("burst", "sustained_high_performance", "high_performance", "balanced", "default")
DEFAULT_PERF_MODES = ("burst", "sustained_high_performance")
PUSH_NAME = "bench"
_CALL = Timeout(30.0)
_PULL = Timeout(300.0)
_TOTAL_S = 6 * 3600.0


@dataclass(frozen=True)
class BenchDevice:
    """The way to a device. identity: None for this machine, which has neither a gate nor facts of its own."""

    transport: Transport
    identity: Identity | None


@dataclass(frozen=True)
class BenchOptions:
    """How blocks are run.

    blocks: of each pair and mode. rounds: of a block, warm-up among them. perf_modes: of the NPU; empty elsewhere.
    cpu_mask: hexadecimal. threads: of the CPU provider. gate: None runs on a warm phone, too. profile: a further block
    of each pair under QNN's profiler. silence_s: longest time without a line.
    """

    provider: Provider
    rounds: int
    blocks: int = 4
    perf_modes: tuple[str, ...] = ()
    cpu_mask: str | None = None
    threads: int = 1
    gate: ThermalGate | None = None
    profile: bool = False
    keep: bool = False
    silence_s: float | None = None

    def __post_init__(self) -> None:
        if min(self.rounds, self.blocks, self.threads) < 1:
            raise UsageError(
                f"{self.blocks} blocks of {self.rounds} rounds on {self.threads} threads: each must be 1 or more"
            )
        require_known_modes(self.perf_modes)
        if self.perf_modes and self.provider != "htp":
            raise UsageError(f"performance modes are the NPU's; the provider {self.provider} has none")
        if self.profile and self.provider == "cpu":
            raise UsageError("--profile is QNN's own profiler: it needs --provider htp or simulator")
        if self.cpu_mask is not None and not _is_mask(self.cpu_mask):
            raise UsageError(
                f"--cpu-mask {self.cpu_mask!r} is no hexadecimal mask of cores, such as c0 for the last two of 8"
            )

    @property
    def timeout(self) -> Timeout:
        """Of a block."""
        return Timeout(_TOTAL_S, SILENCE_S[self.provider] if self.silence_s is None else self.silence_s)


@dataclass(frozen=True)
class BenchPlan:
    """What is run: the staged folder, the runner, each label's bundles in the folder, and the chip (None: the CPU)."""

    folder: Path
    runner: RunnerFolder
    pairs: Mapping[str, StagedPair]
    chip: Target | None


@dataclass(frozen=True)
class Variant:
    """A block to run: a pair's label, a performance mode, and whether QNN's profiler is on."""

    label: str
    perf_mode: str | None = None
    profiled: bool = False

    @property
    def name(self) -> str:
        """For files and messages."""
        return "-".join([self.label, *([self.perf_mode] if self.perf_mode else []), *(["profiled"] * self.profiled)])


def require_known_modes(modes: Sequence[str]) -> None:
    """Raise UsageError for a performance mode that the NPU does not have."""
    unknown = [mode for mode in modes if mode not in PERF_MODES]
    if unknown:
        raise UsageError(f"--perf-mode {unknown[0]!r} is unknown; use {', '.join(PERF_MODES)}")


def block_order(labels: Sequence[str], options: BenchOptions) -> list[Variant]:
    """All blocks in the order in which they run: every second turn backwards, profiled ones at the end."""
    modes: Sequence[str | None] = options.perf_modes or (None,)
    turn = [Variant(label, mode) for label in labels for mode in modes]
    timed = [variant for number in range(options.blocks) for variant in (turn[::-1] if number % 2 else turn)]
    profiled = [Variant(label, modes[0], profiled=True) for label in labels] if options.profile else []
    return timed + profiled


def run_bench(
    device: BenchDevice, plan: BenchPlan, options: BenchOptions, raw: Path, progress: Callable[[str], None]
) -> tuple[Block, ...]:
    """Push the plan's folder and run all blocks; what each printed is written to `raw`, profiles too.

    Raises DeviceError: a push, a gate, a link or a runner that failed; nothing is a result then.
    """
    progress(f"pushing to {device.transport.name}")
    on_phone = device.identity is not None
    awake: AbstractContextManager[object] = kept_awake(device.transport) if on_phone else nullcontext()
    with pushed_folder(device.transport, plan.folder, PushOptions(PUSH_NAME, options.keep)) as pushed, awake:
        run = _BenchRun(device, plan, options, pushed, raw)
        order, blocks = block_order([*plan.pairs], options), []
        for number, variant in enumerate(order):
            progress(f"block {number + 1} of {len(order)}: {variant.name}")
            blocks.append(run.block(number, variant))
    return tuple(blocks)


@dataclass(frozen=True)
class _BenchRun:
    device: BenchDevice
    plan: BenchPlan
    options: BenchOptions
    pushed: PushResult
    raw: Path

    def block(self, number: int, variant: Variant) -> Block:
        """Run one block, between two looks at the phone."""
        transport, on_phone = self.device.transport, self.device.identity is not None
        cool_down = self._cool_down()
        before = read_facts(transport, _CALL) if on_phone else None
        lines = self._run(number, variant)
        after = read_facts(transport, _CALL) if on_phone else None
        return Block(
            bundle=variant.label,
            runner=lines.require_end(self.options.rounds),
            loads=tuple(lines.loads),
            rounds=tuple(lines.rounds),
            profiled=variant.profiled,
            cool_down=cool_down,
            before=before,
            after=after,
        )

    def _cool_down(self) -> CoolDown | None:
        """Wait for a cool phone; None without a gate.

        What is no phone's NPU may be measured where nothing tells of heat. Raises FactError for an NPU without a
        thermal status, ThermalGateError for a phone that stays warm.
        """
        gate = self.options.gate
        if gate is None or self.device.identity is None:
            return None
        try:
            return wait_until_cool(self.device.transport, gate)
        except ThermalGateError:
            raise
        except FactError as error:
            if self.options.provider == "htp":
                raise
            _LOG.warning("measured without a thermal gate: %s", error)
            return None

    def _run(self, number: int, variant: Variant) -> RunnerLines:
        transport, name = self.device.transport, f"{number:02d}-{variant.name}"
        lines, command = RunnerLines(transport.name), self._command(variant)
        _LOG.debug("running %s", command)
        try:
            with (
                (self.raw / f"{name}.jsonl").open("w", encoding="utf-8") as series,
                closing(transport.stream(command, self.options.timeout)) as printed,
            ):
                for line in printed:
                    series.write(f"{line}\n")
                    lines.take(line)
        except CommandError as error:
            raise lines.failure(error) from error
        lines.require_end(self.options.rounds)
        if variant.profiled:
            remote = posixpath.join(self.pushed.remote, RUNNER_DIR, _profile_name(variant))
            pull_verified(transport, remote, self.raw / f"{name}.csv", _PULL)
        return lines

    def _command(self, variant: Variant) -> Command:
        options, plan = self.options, self.plan
        setup = RunnerSetup(plan.runner, options.provider, plan.chip, options.threads, options.cpu_mask)
        more = ["--rounds", f"../{ROUNDS_NAME}", "--count", str(options.rounds)]
        more += [] if variant.perf_mode is None else ["--perf-mode", variant.perf_mode]
        more += ["--profile", _profile_name(variant)] if variant.profiled else []
        return setup.command("bench", self.pushed.remote, plan.pairs[variant.label], *more)


def usb_powered(blocks: Sequence[Block]) -> bool | None:
    """Whether USB fed the phone in any block; None where the device has no battery to ask."""
    batteries = [
        facts.battery
        for block in blocks
        for facts in (block.before, block.after)
        if facts and facts.battery is not None
    ]
    return any("usb" in battery.powered_by for battery in batteries) if batteries else None


def _profile_name(variant: Variant) -> str:
    return f"profile-{variant.label}.csv"


def _is_mask(text: str) -> bool:
    try:
        return int(text, 16) > 0
    except ValueError:
        return False
