"""The limits of a verdict and the form of its reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

WarningText = str


@dataclass(frozen=True)
class Limits:
    """Where a run stops being valid.

    max_drift: share by which the median of a block's last third may differ from that of its first, where chance would
    show as much in less than the share drift_p of measurements (twice that at most: two tests, docs/bench-report.md).
    min_rounds: timed rounds of each bundle and performance mode. min_accounted: the parts' share of the median round.
    min_battery_percent: below it Android may save power. min_clock_share: a core's limit against its highest clock.

    Raises UsageError for a limit that cannot be one.
    """

    min_rounds: int = 10
    min_accounted: float = 0.95
    max_drift: float = 0.05
    drift_p: float = 0.01
    max_thermal_status: int = 0
    min_battery_percent: int = 20
    min_clock_share: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.min_accounted, self.max_drift, self.drift_p, self.min_clock_share)
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise UsageError(f"limits are {self}; want finite numbers that are not negative")
        if self.min_rounds < 1 or self.max_thermal_status < 0:
            raise UsageError(f"limits are {self}; want at least 1 round and a thermal status that is not negative")


DEFAULT_LIMITS = Limits()
MAX_DRIFT = {"htp": DEFAULT_LIMITS.max_drift, "cpu": 0.2, "simulator": 0.2}
"""By provider, the drift that passes: a host's core is shared, and its times stand for no phone."""


def limits_for(provider: str, given: Mapping[str, Any]) -> Limits:
    """The limits of a run on a provider; `given` are fields of Limits that its user has set."""
    return Limits(**{"max_drift": MAX_DRIFT[provider], **given})


@dataclass(frozen=True)
class Reason:
    """Why a result is invalid. what: a short name. label, perf_mode, block: where, None for everywhere.

    value and limit are what was compared; None where there is no number.
    """

    what: str
    text: str
    value: float | str | bool | None
    limit: float | str | bool | None
    label: str | None = None
    perf_mode: str | None = None
    block: int | None = None

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.label, self.perf_mode) if part is not None)
        return f"{where}: {self.text}" if where else self.text

    def concerns(self, label: str, perf_mode: str | None) -> bool:
        """Whether the run of this bundle and performance mode is hit by it."""
        return self.label in (None, label) and self.perf_mode in (None, perf_mode)
