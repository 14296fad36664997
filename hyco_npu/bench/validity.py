"""What makes a run's times unusable, and what only weakens them.

Every reason says what was found, its value and the limit; one reason makes the result invalid. What a device does not
tell is a warning and stays null: it is neither held against the run nor guessed. The exception is the NPU: without a
thermal gate its times are not taken, because a warm phone's are those of the heat.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from hyco_npu.bench.facts_validity import fact_reasons, fact_warnings
from hyco_npu.bench.reasons import DEFAULT_LIMITS, Limits, Reason, WarningText
from hyco_npu.bench.runs import on_x86, runs_of
from hyco_npu.bench.statistics import MIN_DRIFT_VALUES, Drift, drift

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from device_runner.measurement import Measurement, RoundSample
    from hyco_npu.bench.runs import Run

__all__ = ["DEFAULT_LIMITS", "Limits", "Reason", "find_reasons", "find_warnings"]

_MS_TO_NS = 1e6
_CLOCK_SLACK_NS = 10_000
"""The runner prints a round's length with fewer digits than its start."""
_ROUNDING_SHARE, _ROUNDING_MS = 1e-3, 0.01
"""What parts may exceed a round by: printed digits."""


def find_reasons(measurement: Measurement, limits: Limits) -> tuple[Reason, ...]:
    """Everything that makes the measurement invalid, in the order in which it is best read."""
    runs = runs_of(measurement)
    found = [*_tree_reasons(measurement), *_runner_reasons(measurement)]
    for run in runs:
        found += [*fact_reasons(run, limits), *_count_reasons(run, limits)]
        found += _parts_reasons(run, limits)
    return (*found, *_drift_reasons(runs, limits), *_clock_reasons(measurement))


def find_warnings(measurement: Measurement) -> tuple[WarningText, ...]:
    """What a reader must know of the figures although they stand."""
    return (*fact_warnings(measurement), *_round_warnings(measurement))


def _tree_reasons(measurement: Measurement) -> Iterator[Reason]:
    checks = {check.label: check for check in measurement.tree_checks}
    for label in sorted({block.bundle for block in measurement.blocks}):
        check = checks.get(label)
        if check is None or not check.shares:
            yield Reason("trees", "the device's trees were not compared with the host's", None, None, label)
            continue
        lowest = min(check.shares)
        if lowest < check.needed:
            below = sum(share < check.needed for share in check.shares)
            text = (
                f"{below} of {len(check.shares)} trees differ from those of the host ({check.reference}): the worst "
                f"has {lowest:.3f} of its nodes in common, the limit is {check.needed:.3f}"
            )
            yield Reason("trees", text, lowest, check.needed, label)
        if not check.repeatable:
            text = "the same recorded rounds gave other trees in a later pass; want the same ones"
            yield Reason("trees_repeat", text, False, True, label)


def _runner_reasons(measurement: Measurement) -> Iterator[Reason]:
    for name, what in _SAME.items():
        told = list(dict.fromkeys(getattr(block.runner, name) for block in measurement.blocks))
        if len(told) > 1:
            listed = ", ".join(map(str, told))
            text = f"{what} differs between blocks: {listed}; want one"
            yield Reason("versions", text, listed, "one")
    claims = [block.runner for block in measurement.blocks if block.runner.provider == "htp" and on_x86(block.runner)]
    if claims:
        text = f"the runner says htp and is a build for {claims[0].abi}, where there is no such NPU"
        yield Reason("provider", text, claims[0].abi, "arm64-v8a")


def _count_reasons(run: Run, limits: Limits) -> Iterator[Reason]:
    count = len(run.timed_rounds)
    if count < limits.min_rounds:
        text = f"{count} timed rounds after warm-up; want at least {limits.min_rounds}"
        yield Reason("rounds", text, count, limits.min_rounds, run.label, run.perf_mode)
    for place, rounds in zip(run.places, run.timed, strict=True):
        if not rounds:
            text = f"block {place} has no timed round after {run.warm_up} of warm-up; want at least 1"
            yield Reason("rounds", text, 0, 1, run.label, run.perf_mode, place)


def _parts_reasons(run: Run, limits: Limits) -> Iterator[Reason]:
    rounds = run.timed_rounds
    # The median: a round in which another process had the core says nothing about what the parts leave out.
    share = statistics.median(_sum_of_parts(sample) / sample.total_ms for sample in rounds) if rounds else None
    if share is not None and share < limits.min_accounted:
        text = f"the parts add up to {share:.3f} of the median round; want at least {limits.min_accounted:.3f}"
        yield Reason("accounted", text, share, limits.min_accounted, run.label, run.perf_mode)
    over = [sample for sample in rounds if _sum_of_parts(sample) > _allowed(sample)]
    if over:
        worst = max(over, key=lambda sample: _sum_of_parts(sample) - sample.total_ms)
        summed = _sum_of_parts(worst)
        text = (
            f"in {len(over)} rounds the parts add up to more than the round, most in round {worst.number}: "
            f"{summed:.3f} of {worst.total_ms:.3f} ms"
        )
        yield Reason("parts", text, summed, worst.total_ms, run.label, run.perf_mode)


def _drift_reasons(runs: Sequence[Run], limits: Limits) -> Iterator[Reason]:
    """Each block, and all blocks of a run in a row: heat may also come from block to block.

    Bonferroni: every series has its part of drift_p, so that many blocks are not flagged more often than one.
    """
    tested = [(run, place, moved) for run in runs for place, moved in _drifts(run)]
    for run, place, moved in tested:
        if moved.beyond(limits.max_drift, limits.drift_p / len(tested)):
            where = f"all {len(run.blocks)} blocks in a row" if place is None else f"block {place}"
            text = (
                f"the times of {where} drift: the last third's median is {moved.ratio:.3f} of the first third's "
                f"(limit {1 + limits.max_drift:.3f} either way), p = {moved.p:.1g}"
            )
            yield Reason("drift", text, moved.ratio, 1 + limits.max_drift, run.label, run.perf_mode, place)


def _drifts(run: Run) -> Iterator[tuple[int | None, Drift]]:
    """By block, and under None for all of several blocks; series that are too short are left out."""
    series: list[tuple[int | None, Sequence[RoundSample]]] = [*zip(run.places, run.timed, strict=True)]
    if len(series) > 1:
        series.append((None, run.timed_rounds))
    for place, rounds in series:
        moved = drift([sample.total_ms for sample in rounds])
        if moved is not None:
            yield place, moved


def _clock_reasons(measurement: Measurement) -> Iterator[Reason]:
    """The device's monotonic clock never goes back, across blocks neither, and rounds do not overlap."""
    end_ns = -math.inf
    for place, block in enumerate(measurement.blocks):
        for sample in block.rounds:
            if sample.start_ns < end_ns - _CLOCK_SLACK_NS:
                text = (
                    f"the device's clock goes back: round {sample.number} of block {place} starts "
                    f"{(end_ns - sample.start_ns) / _MS_TO_NS:.3f} ms before the one before it ended"
                )
                yield Reason("clock", text, sample.start_ns, end_ns, block.bundle, block.runner.perf_mode, place)
                return
            end_ns = sample.start_ns + sample.total_ms * _MS_TO_NS


def _round_warnings(measurement: Measurement) -> Iterator[WarningText]:
    if not any(sample.matched is not None for block in measurement.blocks for sample in block.rounds):
        yield "the recorded rounds do not carry the text on: tokens per round are not known"
    for run in runs_of(measurement):
        short = [
            place for place, rounds in zip(run.places, run.timed, strict=True) if 0 < len(rounds) < MIN_DRIFT_VALUES
        ]
        if short:
            listed = ", ".join(map(str, short))
            few = f"fewer than {MIN_DRIFT_VALUES} timed rounds in block {listed}"
            yield f"{run.name}: {few}: drift within it is not tested"


def accounted_share(rounds: list[RoundSample]) -> float | None:
    """Sum of all parts over the sum of all rounds; None without rounds."""
    total = math.fsum(sample.total_ms for sample in rounds)
    return math.fsum(map(_sum_of_parts, rounds)) / total if rounds else None


def _sum_of_parts(sample: RoundSample) -> float:
    return math.fsum(sample.parts.values())


def _allowed(sample: RoundSample) -> float:
    return sample.total_ms * (1 + _ROUNDING_SHARE) + _ROUNDING_MS


_SAME = {
    "provider": "the provider",
    "version": "the runner's version",
    "ort_version": "ONNX Runtime's version",
    "qnn_build": "QNN's build",
    "abi": "the runner's build",
    "cpu_mask": "the CPU mask",
    "threads": "the number of threads",
}
