"""What is kept of a tensor's values while they stream by: extremes, counts, and a histogram that merges exactly.

Bins have a width of 2^e and edges at its multiples, e the least for which all values fit; where a greater value comes,
bins are joined in pairs. So the histogram depends on the values alone, not on their order or on how they were cut into
batches and shards. Zeros are counted apart: they are mostly padding, and every range that is used holds 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from calibration.errors import CalibrationError

_HALF_BITS = 12
HALF = 1 << _HALF_BITS
BINS = 2 * HALF
"""Bin i holds the values in [(i - HALF) w, (i - HALF + 1) w)."""
_LOWEST_EXPONENT = -148 - _HALF_BITS  # of a histogram of float32's smallest number alone
_WHOLE_SHIFT = 63


@dataclass(eq=False)
class TensorObserver:
    """Statistics of float32 values: `low`, `high` of the finite ones, how many there were, zeros and not finite ones.

    `bins` [BINS] int64 counts the others, finite and not 0; their width is 2^`exponent`.
    """

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    zeros: int = 0
    nonfinite: int = 0
    exponent: int = _LOWEST_EXPONENT
    bins: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    @property
    def width(self) -> float:
        """Width of a bin."""
        return math.ldexp(1.0, self.exponent)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest finite value. Raises CalibrationError where none was seen."""
        if self.low > self.high:
            raise CalibrationError("no finite value was seen; calibrate on prompts that reach this tensor")
        return self.low, self.high

    def observe(self, values: npt.NDArray[np.float32]) -> None:
        """Take in an array of any shape."""
        flat = values.ravel()
        self.count += flat.size
        finite = np.isfinite(flat)
        if not finite.all():
            flat = flat[finite]
            self.nonfinite += finite.size - flat.size
        if not flat.size:
            return
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
        others = flat[flat != 0].astype(np.float64)
        self.zeros += flat.size - others.size
        if others.size:
            largest = max(-float(others.min()), float(others.max()))
            self._grow(math.frexp(largest)[1] - _HALF_BITS)
            index = np.floor(np.ldexp(others, -self.exponent)).astype(np.int64) + HALF
            self.bins += np.bincount(index, minlength=BINS)

    def merge(self, other: TensorObserver) -> TensorObserver:
        """What one observer of the values of both would hold, bit for bit."""
        merged = TensorObserver(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            nonfinite=self.nonfinite + other.nonfinite,
            exponent=self.exponent,
            bins=self.bins.copy(),
        )
        merged._grow(other.exponent)
        merged.bins += _joined(other.bins, merged.exponent - other.exponent)
        return merged

    def magnitudes(self) -> npt.NDArray[np.int64]:
        """Counts [HALF] of |value|: entry i holds those in [i w, (i + 1) w]."""
        counts: npt.NDArray[np.int64] = self.bins[HALF:] + self.bins[:HALF][::-1]
        return counts

    def share_outside(self, low: float, high: float) -> float:
        """Share of the finite values, zeros aside, in bins that lie wholly outside [low, high]."""
        edges = (np.arange(BINS + 1) - HALF) * self.width
        outside = int(self.bins[(edges[1:] <= low) | (edges[:-1] > high)].sum())
        return outside / max(1, int(self.bins.sum()))

    def _grow(self, exponent: int) -> None:
        if exponent > self.exponent:
            self.bins = _joined(self.bins, exponent - self.exponent)
            self.exponent = exponent


def _joined(bins: npt.NDArray[np.int64], shift: int) -> npt.NDArray[np.int64]:
    """The counts in bins 2^shift times as wide: index -> floor(index / 2^shift)."""
    if not shift:
        return bins
    filled = np.flatnonzero(bins)
    joined = np.zeros(BINS, np.int64)
    np.add.at(joined, ((filled - HALF) >> min(shift, _WHOLE_SHIFT)) + HALF, bins[filled])
    return joined
