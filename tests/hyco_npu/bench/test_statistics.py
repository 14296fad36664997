"""Percentiles against closed forms and numpy, intervals against known cases, and how often drift is seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyco_npu.bench.statistics import Statistics, describe, drift, mean_interval, paired_ratio

LIMIT, P_LIMIT = 0.05, 0.01


def flagged(values: np.ndarray) -> bool:
    found = drift(values.tolist())
    assert found is not None
    return found.beyond(LIMIT, P_LIMIT)


def test_percentiles_by_the_closed_form() -> None:
    """Of 0 to 100 percentile q is q itself; of 1 to 10 it lies at 1 + 0.09 q."""
    assert describe([*map(float, range(101))]) == Statistics(50.0, 90.0, 99.0, 0.0, 100.0, 101)
    ten = describe([10.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0])
    assert ten is not None
    assert (ten.median, ten.p90, ten.p99) == pytest.approx((5.5, 9.1, 9.91))
    assert (ten.min, ten.max, ten.n) == (1.0, 10.0, 10)
    assert describe([7.0]) == Statistics(7.0, 7.0, 7.0, 7.0, 7.0, 1)
    assert describe([]) is None


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60))
def test_percentiles_are_numpys_linear_ones(values: list[float]) -> None:
    found = describe(values)
    assert found is not None
    expected = [np.quantile(values, share, method="linear") for share in (0.5, 0.9, 0.99)]
    assert (found.median, found.p90, found.p99) == pytest.approx(expected)
    assert (found.min, found.max, found.n) == (min(values), max(values), len(values))


def test_a_mean_and_its_interval() -> None:
    counts = np.random.default_rng(3).integers(1, 6, 400).astype(float)
    found = mean_interval(counts.tolist())
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * counts.std() / 20  # the normal approximation, good at 400 values
    assert found.value == counts.mean()
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.02)
    assert found.n == 400


def test_intervals_of_too_little() -> None:
    assert mean_interval([]) is None
    assert paired_ratio([]) is None
    assert paired_ratio([[]]) is None
    one, same, pair = mean_interval([3.0]), mean_interval([3.0] * 4), paired_ratio([[(10.0, 9.0)]])
    assert one is not None
    assert same is not None
    assert pair is not None
    assert (one.value, one.low, one.high) == (3.0, None, None)
    assert (same.value, same.low, same.high) == (3.0, 3.0, 3.0)
    assert (pair.value, pair.low, pair.high, pair.n) == (0.9, None, None, 1)


def test_a_ratio_of_medians() -> None:
    """Medians 10 and 8 by hand; noise that both share, or that is nought, leaves the interval at the ratio."""
    blocks = [[(9.0, 7.2), (10.0, 8.0), (500.0, 400.0)], [(10.0, 8.0), (11.0, 8.8)]]
    found = paired_ratio(blocks)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.8, 0.8))
    assert found.n == 5


def test_a_ratios_interval_holds_the_truth() -> None:
    """B takes 0.9 of A's time; blocks differ by 2 %, rounds by 3 %: with so few blocks 9 of 10 intervals hold 0.9."""
    held = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        blocks = []
        for _ in range(6):
            a, b = rng.normal(1, 0.02, 2)
            blocks.append([(10 * a * rng.normal(1, 0.03), 9 * b * rng.normal(1, 0.03)) for _ in range(20)])
        found = paired_ratio(blocks, seed)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.9 <= found.high
    assert held >= 16


def test_drift_by_hand() -> None:
    """1 to 9: medians of thirds 2 and 8; 2 of 9! orders rise or fall throughout; 2 of 20 thirds lie apart."""
    found = drift([*map(float, range(1, 10))])
    assert found is not None
    assert (found.ratio, found.n) == (4.0, 9)
    assert (found.trend_p, found.thirds_p) == pytest.approx((2 / 362_880, 2 / 20))
    assert found.p == found.trend_p
    assert found.beyond(LIMIT, P_LIMIT)
    assert drift([1.0] * 8) is None
    flat = drift([2.0] * 12)
    assert flat is not None
    assert (flat.ratio, flat.p) == (1.0, 1.0)
    assert not flat.beyond(LIMIT, P_LIMIT)


@pytest.mark.parametrize("count", [9, 12, 30, 100])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
def test_a_flat_noisy_series_is_seldom_flagged(count: int, noise: float) -> None:
    """Whatever the noise, at most 2 % of flat series pass for drifting: 18 of 400 come in one run of a thousand."""
    rng = np.random.default_rng(count)
    assert sum(flagged(np.exp(rng.normal(0, noise, count)) * 20) for _ in range(400)) < 18


def test_outliers_are_no_drift() -> None:
    """A few slow rounds, wherever they lie, move neither medians nor ranks much."""
    values = np.random.default_rng(0).normal(20, 0.2, 30)
    values[[21, 25, 28]] = 400
    assert not flagged(values)


@pytest.mark.parametrize("count", [15, 30, 90])
@pytest.mark.parametrize("factor", [1.15, 1 / 1.15])
def test_a_moving_series_is_flagged(count: int, factor: float) -> None:
    """15 % over the series, either way, in 1 % of noise: nearly always seen; a step at half the series, too."""
    rng = np.random.default_rng(count)
    ramp = np.linspace(1, factor, count)
    step = np.where(np.arange(count) < count // 2, 1, factor)
    for shape in (ramp, step):
        seen = sum(flagged(20 * shape * rng.normal(1, 0.01, count)) for _ in range(50))
        assert seen >= 48


def test_a_certain_but_small_trend_is_no_drift() -> None:
    assert not flagged(20 * np.linspace(1, 1.04, 300))
    assert flagged(20 * np.linspace(1, 1.08, 300))
