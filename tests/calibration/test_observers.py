"""Streaming statistics against numpy on the whole data, and shards against one run, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from calibration.errors import CalibrationError
from calibration.observers import BINS, HALF, TensorObserver

if TYPE_CHECKING:
    from collections.abc import Iterable


def observed(batches: Iterable[np.ndarray]) -> TensorObserver:
    observer = TensorObserver()
    for batch in batches:
        observer.observe(batch)
    return observer


def values(size: int = 20_000, seed: int = 0) -> np.ndarray:
    """Heavy tails, zeros, and numbers of very different size."""
    rng = np.random.default_rng(seed)
    array = (rng.standard_t(2, size) * 10.0 ** rng.integers(-6, 3, size)).astype(np.float32)
    array[rng.random(size) < 0.2] = 0.0
    return array


def assert_same(one: TensorObserver, other: TensorObserver) -> None:
    for name in ("low", "high", "count", "zeros", "nonfinite", "exponent"):
        assert getattr(one, name) == getattr(other, name), name
    np.testing.assert_array_equal(one.bins, other.bins)


def test_counts_and_extremes_are_numpys() -> None:
    array = values()
    observer = observed(array.reshape(10, 20, 100))
    assert observer.bounds == (array.min(), array.max())
    assert (observer.count, observer.zeros, observer.nonfinite) == (array.size, (array == 0).sum(), 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_histogram_is_numpys_over_the_same_edges(seed: int) -> None:
    array = values(seed=seed)
    observer = observed(np.split(array, 50))
    edges = (np.arange(BINS + 1) - HALF) * observer.width
    # The narrowest bins of a power of two that reach the greatest size.
    assert HALF * observer.width / 2 <= np.abs(array).max() < HALF * observer.width
    wanted, _ = np.histogram(array[array != 0].astype(np.float64), edges)
    np.testing.assert_array_equal(observer.bins, wanted)


def test_order_and_cuts_do_not_matter() -> None:
    array = values()
    whole = observed([array])
    assert_same(observed(np.split(array, 40)), whole)
    growing = array[np.argsort(np.abs(array))]
    assert_same(observed(np.split(growing, 8)), whole)
    assert_same(observed(np.split(growing[::-1], 8)), whole)


@pytest.mark.parametrize("shards", [2, 3, 7])
def test_merged_shards_are_one_run(shards: int) -> None:
    array = values()
    array[17] = np.nan
    parts = [observed([array[start::shards]]) for start in range(shards)]
    merged = TensorObserver()
    for part in parts:
        merged = merged.merge(part)
    assert_same(merged, observed([array]))
    backwards = parts[-1]
    for part in parts[-2::-1]:
        backwards = part.merge(backwards)
    assert_same(backwards, merged)


def test_merging_leaves_both_as_they_were() -> None:
    small, large = observed([np.float32([1e-30, -1e-30])]), observed([np.float32([1e30])])
    before = small.bins.copy()
    merged = small.merge(large)
    assert (small.count, large.count, merged.count) == (2, 1, 3)
    np.testing.assert_array_equal(small.bins, before)
    # Beside 1e30 the small ones are in the two bins at 0: [0, w) and [-w, 0).
    assert (merged.bins[HALF], merged.bins[HALF - 1]) == (1, 1)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    observer = observed([np.float32([1.0, np.nan, np.inf, -np.inf, -2.0, 0.0])])
    assert observer.bounds == (-2.0, 1.0)
    assert (observer.count, observer.zeros, observer.nonfinite, observer.bins.sum()) == (6, 1, 3, 2)


@pytest.mark.parametrize("extreme", [np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal])
def test_the_ends_of_float32_have_bins(extreme: float) -> None:
    observer = observed([np.float32([extreme, -extreme])])
    filled = np.flatnonzero(observer.bins)
    low, high = (filled - HALF) * observer.width
    assert low <= -extreme < low + observer.width
    assert high <= extreme < high + observer.width


@pytest.mark.parametrize("nothing", [np.float32([]), np.float32([np.nan])])
def test_nothing_has_no_bounds(nothing: np.ndarray) -> None:
    with pytest.raises(CalibrationError, match="no finite value"):
        observed([nothing]).bounds  # noqa: B018


def test_zeros_alone() -> None:
    observer = observed([np.zeros((2, 3), np.float32)])
    assert observer.bounds == (0.0, 0.0)
    assert (observer.zeros, observer.bins.sum()) == (6, 0)


def test_share_outside_counts_bins_wholly_outside() -> None:
    array = np.linspace(-1, 1, 2001, dtype=np.float32)
    observer = observed([array])
    others = array[array != 0]
    for low, high in ((-0.5, 0.25), (-2.0, 2.0), (-0.75, 2.0)):
        wanted = np.mean((others < low) | (others > high))
        assert observer.share_outside(low, high) == pytest.approx(wanted, abs=2e-3)
    assert observer.share_outside(-1.0, 1.0) == 0.0


def test_magnitudes_are_numpys_histogram_of_sizes() -> None:
    array = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    observer = observed([array])
    wanted, _ = np.histogram(np.abs(array), np.arange(HALF + 1) * observer.width)
    np.testing.assert_array_equal(observer.magnitudes(), wanted)
