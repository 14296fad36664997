"""Ranges by each method: order statistics by sorting, squared errors by brute force, and a closed form."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.errors import CalibrationError
from calibration.observers import TensorObserver
from calibration.range_methods import (
    RangeMethod,
    largest_magnitude,
    mse_range,
    percentile_range,
    symmetric_mse_range,
)
from quant.errors import UsageError

STEPS = 65535


def observed(array: np.ndarray) -> TensorObserver:
    observer = TensorObserver()
    observer.observe(array.astype(np.float32))
    return observer


def repeated(observer: TensorObserver, doublings: int) -> TensorObserver:
    for _ in range(doublings):
        observer = observer.merge(observer)
    return observer


def squared_error(array: np.ndarray, low: float, high: float) -> float:
    """Of 16-bit codes over [low, high] and 0, each number rounded and saturated."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / STEPS
    zero = round(-low / scale)
    codes = np.clip(np.rint(array / scale) + zero, 0, STEPS)
    return float((((codes - zero) * scale - array) ** 2).sum())


def test_minmax() -> None:
    assert RangeMethod().range_of(observed(np.array([-0.5, 3.25, 0.0]))) == (-0.5, 3.25)


@pytest.mark.parametrize("percent", [50, 90, 99, 99.9, 99.99, 100])
@pytest.mark.parametrize("shift", [0.0, 4.0, -2.0])
def test_percentiles_leave_out_as_many_as_asked_and_are_order_statistics_to_a_bin(percent: float, shift: float) -> None:
    array = np.random.default_rng(2).standard_t(3, 30_000).astype(np.float32) + np.float32(shift)
    observer = observed(array)
    low, high = percentile_range(observer, percent)
    dropped = {50: 7500, 90: 1500, 99: 150, 99.9: 15, 99.99: 1, 100: 0}[percent]  # of 30,000, on each side
    kept = np.sort(array)[dropped : len(array) - dropped]
    assert low <= kept[0] <= low + observer.width
    assert high - observer.width <= kept[-1] <= high


def test_percentile_100_is_all_and_padding_does_not_count() -> None:
    array = np.random.default_rng(3).standard_normal(10_000)
    assert percentile_range(observed(array), 100) == observed(array).bounds
    padded = observed(np.concatenate([array, np.zeros(1_000_000)]))
    assert percentile_range(padded, 99) == percentile_range(observed(array), 99)


def test_largest_magnitude_is_the_percentile_of_sizes() -> None:
    array = np.random.default_rng(4).standard_t(2, 50_000).astype(np.float32)
    observer = observed(array)
    wanted = np.quantile(np.abs(array), 0.9999, method="inverted_cdf")
    assert wanted <= largest_magnitude(observer, 99.99) <= wanted + 1.01 * observer.width
    assert largest_magnitude(observed(np.zeros(3)), 99.99) == 0.0
    assert largest_magnitude(observed(np.array([-3.0, 1.0])), 99.99) == 3.0


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(5).standard_normal(4000),
        np.random.default_rng(6).standard_t(1.5, 4000),
        np.abs(np.random.default_rng(7).standard_t(2, 4000)) + 1,
        -np.random.default_rng(8).exponential(size=4000),
        np.concatenate([np.random.default_rng(9).standard_normal(4000), [1e3]]),
    ],
    ids=["normal", "heavy", "positive", "negative", "outlier"],
)
def test_no_other_clip_has_a_clearly_smaller_error(array: np.ndarray) -> None:
    """Every pair of ends on a fine grid, each value rounded: the exact error of the choice is close to the least."""
    array = array.astype(np.float32).astype(np.float64)
    low, high = mse_range(observed(array))
    found = squared_error(array, low, high)
    grid = 1 - np.concatenate([[0], np.geomspace(1e-6, 0.5, 25)])
    best = min(squared_error(array, array.min() * a, array.max() * b) for a in grid for b in grid)
    assert found <= 1.1 * best
    assert array.min() <= low <= high <= array.max()


def symmetric_error(array: np.ndarray, clip: float, bits: int) -> float:
    """Of symmetric codes with a step of clip / (2^(bits - 1) - 1), each number rounded and saturated."""
    limit = 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(array / clip * limit), -limit - 1, limit)
    return float(((codes * clip / limit - array) ** 2).sum())


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", ["normal", "laplace", "uniform", "shifted", "negative"])
def test_no_other_symmetric_clip_has_a_clearly_smaller_error(name: str, bits: int) -> None:
    rng = np.random.default_rng(5)
    made = {
        "normal": rng.standard_normal(30_000),
        "laplace": rng.laplace(size=30_000),
        "uniform": rng.uniform(-1, 3, 30_000),
        "shifted": rng.standard_normal(30_000) + 4,
        "negative": -np.abs(rng.standard_t(3, 30_000)),
    }
    array = made[name].astype(np.float32).astype(np.float64)
    low, high = symmetric_mse_range(observed(array), bits)
    assert array.min() <= low <= high <= array.max()
    best = min(symmetric_error(array, clip, bits) for clip in np.abs(array).max() * np.linspace(0.02, 1, 300))
    assert symmetric_error(array, max(-low, high), bits) <= 1.03 * best
    assert RangeMethod("mse").range_of(observed(array), bits) == (low, high)
    if bits == 8 and name in ("normal", "laplace", "negative"):
        # a search at 16 bits keeps all values, which at 8 bits costs clearly more
        assert symmetric_error(array, np.abs(array).max(), bits) > 1.1 * best


def test_a_symmetric_clip_is_the_closed_forms() -> None:
    """(H - a) = n a / (12 * 127^2) with n values of size 1 and one of H: a = H / (1 + n / (12 * 127^2))."""
    many = repeated(observed(np.array([-1.0])), 17)
    low, high = symmetric_mse_range(many.merge(observed(np.array([5.0]))), 8)
    assert high == pytest.approx(5 / (1 + (2**17 + 1) / (12 * 127**2)), rel=1e-3)
    assert low == -1.0
    # at 16 bits the same outlier costs nothing
    assert symmetric_mse_range(many.merge(observed(np.array([5.0]))), 16)[1] == pytest.approx(5.0, rel=1e-3)
    assert RangeMethod("minmax").range_of(many, 8) == (-1.0, -1.0)


def test_one_outlier_beside_very_many_values_is_cut_as_the_closed_form_says() -> None:
    """(H - h) = n h / (12 * 65535^2) with n values of 1 and one of H: h = H / (1 + n / (12 * 65535^2))."""
    many, outlier = repeated(observed(np.array([1.0])), 36), observed(np.array([100.0]))
    low, high = mse_range(many.merge(outlier))
    assert high == pytest.approx(100 / (1 + (2**36 + 1) / (12 * STEPS**2)), rel=1e-3)
    assert low == 1.0
    low, high = mse_range(repeated(observed(np.array([-1.0])), 36).merge(observed(np.array([-100.0]))))
    assert low == pytest.approx(-100 / (1 + (2**36 + 1) / (12 * STEPS**2)), rel=1e-3)
    assert high == -1.0


@pytest.mark.parametrize("array", [[0.0], [2.5], [-2.5], [0.0, 3.0], [-1.0, 1.0]])
@pytest.mark.parametrize("name", ["minmax", "percentile", "mse"])
def test_few_values_keep_their_range(array: list[float], name: str) -> None:
    found = RangeMethod(name).range_of(observed(np.array(array)))  # type: ignore[arg-type]
    assert found == pytest.approx((min(array), max(array)), rel=1e-3)


def test_nothing_seen() -> None:
    for name in ("minmax", "percentile", "mse"):
        with pytest.raises(CalibrationError, match="no finite value"):
            RangeMethod(name).range_of(TensorObserver())  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "percent"), [("median", 99.0), ("percentile", 49.0), ("percentile", 100.5)])
def test_wrong_methods(name: str, percent: float) -> None:
    with pytest.raises(UsageError, match=r"--method|--percentile"):
        RangeMethod(name, percent)  # type: ignore[arg-type]
