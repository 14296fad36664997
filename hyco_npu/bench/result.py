"""From a measurement to figures and a verdict: `evaluate`. Nothing here runs, prints or writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyco_npu.bench.estimate_beside import EstimateBeside, put_beside
from hyco_npu.bench.reasons import DEFAULT_LIMITS
from hyco_npu.bench.runs import NPU_LABEL, require_numbers, runs_of
from hyco_npu.bench.summary import Comparison, RunSummary, compare, summarise
from hyco_npu.bench.validity import find_reasons, find_warnings

if TYPE_CHECKING:
    from device_runner.measurement import Measurement
    from export.estimate import Estimate
    from hyco_npu.bench.reasons import Limits, Reason, WarningText


@dataclass(frozen=True)
class BenchResult:
    """What a measurement comes to.

    runs: every bundle in every performance mode, A and its first mode in front. profiled: the same for blocks with
    profiling on, whose times are no timing and enter nothing else. comparisons: B against A. estimate: beside the
    first of the runs.
    """

    measurement: Measurement
    limits: Limits
    runs: tuple[RunSummary, ...]
    profiled: tuple[RunSummary, ...]
    comparisons: tuple[Comparison, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[WarningText, ...]
    estimate: EstimateBeside | None

    @property
    def valid(self) -> bool:
        """Whether there is no reason against it."""
        return not self.reasons

    @property
    def provider(self) -> str:
        """What ran the graphs: htp, simulator or cpu."""
        return self.runs[0].run.runner.provider

    @property
    def time_label(self) -> str:
        """Whose times these are."""
        return self.runs[0].time_label

    @property
    def measured_on_device(self) -> str:
        """Whether a phone's NPU gave these times, in the word that every report of the project uses."""
        if not on_npu(self):
            return "not measured"
        return "measured" if self.valid else "measured, but invalid"

    def to_json(self) -> dict[str, object]:
        """The result as strict JSON: no NaN, no infinity; docs/bench-report.md tells the fields."""
        from hyco_npu.bench.record import record

        return record(self)


def evaluate(
    measurement: Measurement, limits: Limits = DEFAULT_LIMITS, estimate: Estimate | None = None
) -> BenchResult:
    """Compute everything that is reported. estimate: of bundle pair A.

    Raises MeasurementError for a measurement without a timed block or with times that are none.
    """
    require_numbers(measurement)
    reasons = find_reasons(measurement, limits)
    runs = tuple(summarise(measurement, run) for run in runs_of(measurement))
    return BenchResult(
        measurement=measurement,
        limits=limits,
        runs=runs,
        profiled=tuple(summarise(measurement, run) for run in runs_of(measurement, profiled=True)),
        comparisons=compare([summary.run for summary in runs], reasons),
        reasons=reasons,
        warnings=find_warnings(measurement),
        estimate=None if estimate is None else put_beside(estimate, runs[0]),
    )


def on_npu(result: BenchResult) -> bool:
    """Whether the times are those of a phone's NPU."""
    return result.time_label == NPU_LABEL
