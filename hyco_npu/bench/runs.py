"""A measurement sorted into runs: the blocks of one bundle pair in one performance mode, timed and profiled ones apart.

A block's first round is never timed: it pays for what a process does once. Further warm-up rounds follow it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyco_npu.bench.errors import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from device_runner.measurement import Block, Measurement, RoundSample, RunnerInfo

OTHER = "other"
"""The part of a round that no clock in the runner covers: total - sum of the parts."""

NPU_LABEL = "phone NPU (htp)"
"""The label of times that a phone's NPU gave."""


@dataclass(frozen=True)
class Run:
    """Blocks of one label and one performance mode in the order in which they ran; places: theirs in the measurement.

    warm_up: untimed rounds at the start of each block.
    """

    label: str
    perf_mode: str | None
    places: tuple[int, ...]
    blocks: tuple[Block, ...]
    warm_up: int

    @property
    def runner(self) -> RunnerInfo:
        """What the first block's runner says; the verdict asks that all say the same."""
        return self.blocks[0].runner

    @property
    def timed(self) -> list[tuple[RoundSample, ...]]:
        """The timed rounds of each block."""
        return [block.rounds[self.warm_up :] for block in self.blocks]

    @property
    def timed_rounds(self) -> list[RoundSample]:
        """The timed rounds of all blocks, in order."""
        return [sample for block in self.timed for sample in block]

    @property
    def name(self) -> str:
        """For messages: `A, burst`, or `A` where there are no performance modes."""
        return self.label if self.perf_mode is None else f"{self.label}, {self.perf_mode}"


def runs_of(measurement: Measurement, *, profiled: bool = False) -> tuple[Run, ...]:
    """The runs: by label, within it by performance mode in the order of first appearance."""
    places: dict[tuple[str, str | None], list[int]] = {}
    for place, block in enumerate(measurement.blocks):
        if block.profiled == profiled:
            places.setdefault((block.bundle, block.runner.perf_mode), []).append(place)
    keys = sorted(places, key=lambda key: key[0])  # a stable sort: performance modes stay in their order
    return tuple(
        Run(
            label=key[0],
            perf_mode=key[1],
            places=tuple(places[key]),
            blocks=tuple(measurement.blocks[place] for place in places[key]),
            warm_up=warm_up_of(measurement),
        )
        for key in keys
    )


def warm_up_of(measurement: Measurement) -> int:
    """Untimed rounds at the start of a block, the first one always among them."""
    return max(1, measurement.warm_up_rounds)


def other_ms(sample: RoundSample) -> float:
    """What the parts leave of the round."""
    return sample.total_ms - math.fsum(sample.parts.values())


def part_names(samples: Sequence[RoundSample]) -> list[str]:
    """All parts that some round has, steps and passes in their order, then the rest as the runner names them."""
    names = dict.fromkeys(name for sample in samples for name in sample.parts)
    return sorted(names, key=lambda name: (*_rank(name), list(names).index(name)))


def times_of(samples: Sequence[RoundSample], graph: str) -> list[float]:
    """Every pass `mtp_step` or `slm_pass` of every round, in ms."""
    return [ms for sample in samples for name, ms in sample.parts.items() if _numbered(name)[0] == graph]


def time_label(runner: RunnerInfo) -> str:
    """Whose times these are; written beside every one of them."""
    architecture = runner.abi.partition("-")[0]
    if runner.provider == "htp" and not on_x86(runner):
        return NPU_LABEL
    if runner.provider == "simulator":
        return f"{_ARCHITECTURES.get(architecture, architecture)} HTP simulator, not a phone"
    if runner.provider == "cpu" and runner.abi == "arm64-v8a":
        return "phone CPU (cpu), not its NPU"
    return f"{_ARCHITECTURES.get(architecture, architecture)} CPU ({runner.provider}), not a phone"


def on_x86(runner: RunnerInfo) -> bool:
    """Whether the runner is a build for a machine that has no NPU of this kind."""
    return runner.abi.startswith("x86")


def require_numbers(measurement: Measurement) -> None:
    """Raise MeasurementError for no timed block, a bundle that is not told of, or a time that is no time."""
    if not any(not block.profiled for block in measurement.blocks):
        raise MeasurementError("the measurement holds no timed block, so there is nothing to report; run bench again")
    labels = {pair.label for pair in measurement.pairs}
    for place, block in enumerate(measurement.blocks):
        if block.bundle not in labels:
            raise MeasurementError(f"block {place} is of bundle {block.bundle!r}; the run has {sorted(labels)}")
        for sample in block.rounds:
            if not (math.isfinite(sample.total_ms) and sample.total_ms > 0):
                raise MeasurementError(f"block {place}, round {sample.number}: took {sample.total_ms} ms; want > 0")
            _require_parts(place, sample)
        for load in block.loads:
            _require_time(f"block {place}, load of {load.graph}", load.milliseconds)
            _require_time(f"block {place}, check of {load.graph}", load.verify_ms)
    for check in measurement.tree_checks:
        if not all(math.isfinite(share) for share in (*check.shares, check.needed)):
            raise MeasurementError(f"trees of {check.label}: a share of equal nodes is no number")


def _require_parts(place: int, sample: RoundSample) -> None:
    for name, ms in sample.parts.items():
        where = f"block {place}, round {sample.number}, part {name}"
        if name == OTHER:
            raise MeasurementError(f"{where}: this name is kept for what the other parts leave of the round")
        _require_time(where, ms)


def _require_time(where: str, ms: float) -> None:
    if not (math.isfinite(ms) and ms >= 0):
        raise MeasurementError(f"{where}: {ms} ms; want a finite time >= 0")


def pairs_of_rounds(first: Run, second: Run) -> Iterator[list[tuple[RoundSample, RoundSample]]]:
    """For the i-th blocks of two runs their timed rounds of one number: the same recorded rounds."""
    for own, other in zip(first.timed, second.timed, strict=False):
        by_number = {sample.number: sample for sample in other}
        yield [(sample, by_number[sample.number]) for sample in own if sample.number in by_number]


def _rank(name: str) -> tuple[int, int]:
    stem, number = _numbered(name)
    return (_GRAPHS.index(stem), number) if stem in _GRAPHS else (len(_GRAPHS), 0)


def _numbered(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("_")
    return (stem, int(number)) if number.isdigit() else (name, 0)


_GRAPHS = ("mtp_step", "slm_pass")
_ARCHITECTURES = {"x86_64": "x86", "aarch64": "aarch64", "arm64": "arm64"}
