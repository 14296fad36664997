"""Figures of a series of times, and intervals: arithmetic alone, that knows no device and no round.

Percentiles are numpy's linear interpolation: percentile q of n sorted values lies at place q / 100 * (n - 1), counted
from 0, between its two neighbours in proportion. No mean is given for times: one slow round in ten would move it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
_RESAMPLES = 2_000
MIN_DRIFT_VALUES = 9


@dataclass(frozen=True)
class Statistics:
    """A series in one line. All fields but n have the unit of its values."""

    median: float
    p90: float
    p99: float
    min: float
    max: float
    n: int


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval; low and high are None where there is too little to resample."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Drift:
    """How a series moved: median of its last third over that of its first, and whether that may be chance.

    trend_p: Kendall's test of the whole series against its order, which sees a slow drift also in few values.
    thirds_p: Mann and Whitney's test of the last third against the first, which sees a step; from 15 values on it can
    fall below 0.01. Both are two-sided and of ranks, so that single slow rounds do not matter.
    """

    ratio: float
    trend_p: float
    thirds_p: float
    n: int

    @property
    def p(self) -> float:
        """The smaller of both: each is below p in a share p of flat series, so at most 2 p of them are below it."""
        return min(self.trend_p, self.thirds_p)

    def beyond(self, limit: float, p_limit: float) -> bool:
        """Whether it moved by more than the share `limit`, either way, and not by chance."""
        return (self.ratio > 1 + limit or self.ratio < 1 / (1 + limit)) and self.p < p_limit


def describe(values: Sequence[float]) -> Statistics | None:
    """The figures of a series; None for an empty one."""
    if not len(values):
        return None
    median, p90, p99 = np.percentile(np.asarray(values, np.float64), (50, 90, 99), method="linear")
    return Statistics(float(median), float(p90), float(p99), float(min(values)), float(max(values)), len(values))


def mean_interval(values: Sequence[float], seed: int = 0) -> Interval | None:
    """Mean of counts with a percentile bootstrap over them (scipy.stats.bootstrap); None for no value."""
    if not len(values):
        return None
    counts = np.asarray(values, np.float64)
    mean = float(counts.mean())
    if len(counts) < 2:
        return Interval(mean, None, None, 1)
    from scipy import stats

    found = stats.bootstrap(
        (counts,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high), len(counts))


def paired_ratio(blocks: Sequence[Sequence[tuple[float, float]]], seed: int = 0) -> Interval | None:
    """Median of the second values over that of the first, with a two-stage percentile bootstrap.

    blocks: for each pair of blocks the pairs of rounds (first, second). A sample draws pairs of blocks with
    replacement, then in each as many pairs of rounds; a round of both stays together. With one pair of blocks the
    interval says nothing of how blocks differ. None where there is no pair.
    """
    arrays = [np.asarray(block, np.float64) for block in blocks if len(block)]
    if not arrays:
        return None
    everything = np.concatenate(arrays)
    ratio = _ratio_of_medians(everything)
    if len(everything) < 2:
        return Interval(ratio, None, None, len(everything))
    rng = np.random.default_rng(seed)
    ratios = np.empty(_RESAMPLES)
    for sample in range(_RESAMPLES):
        drawn = (arrays[place] for place in rng.integers(0, len(arrays), len(arrays)))
        ratios[sample] = _ratio_of_medians(
            np.concatenate([block[rng.integers(0, len(block), len(block))] for block in drawn])
        )
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, (tail, 100 - tail))
    return Interval(ratio, float(low), float(high), len(everything))


def drift(values: Sequence[float]) -> Drift | None:
    """How a series in its order of time moved; None for fewer than 9 values."""
    if len(values) < MIN_DRIFT_VALUES:
        return None
    third = len(values) // 3
    ratio = float(np.median(values[-third:]) / np.median(values[:third]))
    if len(set(values)) == 1:  # without two different values neither test is defined
        return Drift(ratio, 1.0, 1.0, len(values))
    from scipy import stats

    trend = stats.kendalltau(np.arange(len(values)), values)
    thirds = stats.mannwhitneyu(values[:third], values[-third:], alternative="two-sided")
    return Drift(ratio, float(trend.pvalue), float(thirds.pvalue), len(values))


def _ratio_of_medians(pairs: np.ndarray) -> float:
    first, second = np.median(pairs, axis=0)
    return float(second / first)
