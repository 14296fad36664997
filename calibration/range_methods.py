"""From a tensor's statistics to its range: all of it, all but a few values, or the least squared error of its codes.

Zeros count for nothing in a percentile or an error: padding would drown the values, and 0 has an exact code anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from calibration.observers import BINS, HALF
from quant.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from calibration.observers import TensorObserver

MethodName = Literal["minmax", "percentile", "mse"]
ASYMMETRIC_BITS = 16
"""Bits of every activation whose codes are not symmetric."""
_STEPS = 2**ASYMMETRIC_BITS - 1
_HALVINGS = 80


@dataclass(frozen=True)
class RangeMethod:
    """How ranges are chosen; `percentile` is the share, in percent, of values that "percentile" keeps.

    Raises UsageError for an unknown name and for a share outside 50..100.
    """

    name: MethodName = "minmax"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if self.name not in get_args(MethodName):
            raise UsageError(f"--method {self.name!r} is unknown; use one of {', '.join(get_args(MethodName))}")
        if not 50 <= self.percentile <= 100:
            raise UsageError(f"--percentile {self.percentile:g} must lie in 50..100")

    def __str__(self) -> str:
        return f"percentile {self.percentile:g}" if self.name == "percentile" else self.name

    def range_of(self, observer: TensorObserver, symmetric_bits: int | None = None) -> tuple[float, float]:
        """(low, high) of a tensor, within its extremes; `symmetric_bits` where its codes are symmetric.

        Raises CalibrationError where no finite value was seen.
        """
        if self.name == "percentile":
            return percentile_range(observer, self.percentile)
        if self.name == "minmax":
            return observer.bounds
        return mse_range(observer) if symmetric_bits is None else symmetric_mse_range(observer, symmetric_bits)


def percentile_range(observer: TensorObserver, percent: float) -> tuple[float, float]:
    """The range that keeps `percent` of the values other than 0 and leaves out equally many on both sides.

    Each end is the outer edge of the bin that the last kept value lies in, so no more than that share is left out.
    Where zeros were seen, 0 is in the range.
    """
    low, high = observer.bounds
    total = int(observer.bins.sum())
    if not total:
        return low, high
    dropped = _dropped(total, percent) // 2
    first = int(np.searchsorted(np.cumsum(observer.bins), dropped, side="right"))
    last = BINS - 1 - int(np.searchsorted(np.cumsum(observer.bins[::-1]), dropped, side="right"))
    low, high = max(low, (first - HALF) * observer.width), min(high, (last + 1 - HALF) * observer.width)
    return (min(low, 0.0), max(high, 0.0)) if observer.zeros else (low, high)


def largest_magnitude(observer: TensorObserver, percent: float) -> float:
    """The size that `percent` of the values other than 0 do not exceed, to the next edge of a bin; 0 without values."""
    counts = observer.magnitudes()
    total = int(counts.sum())
    if not total:
        return 0.0
    dropped = _dropped(total, percent)
    index = HALF - 1 - int(np.searchsorted(np.cumsum(counts[::-1]), dropped, side="right"))
    return min((index + 1) * observer.width, max(-observer.low, observer.high))


def mse_range(observer: TensorObserver) -> tuple[float, float]:
    """The clip with the least squared error of 16-bit codes, values taken at the middle of their bins.

    Of n values in a range of width d = high - low (0 in it), the error is

        sum over x < low of (low - x)^2 + sum over x > high of (x - high)^2 + n d^2 / (12 * 65535^2),

    which is convex: at its minimum sum (low - x) = sum (x - high) = n d / (12 * 65535^2). Both ends follow from d by
    inverting piecewise linear functions, and the d that they span is found by bisection.
    """
    low, high = observer.bounds
    filled = np.flatnonzero(observer.bins)
    if not filled.size:
        return low, high
    counts = observer.bins[filled].astype(np.float64)
    values = np.clip((filled - HALF + 0.5) * observer.width, low, high)
    values[0], values[-1] = (low if low < 0 else values[0]), (high if high > 0 else values[-1])
    below, above = _excess(values, counts), _excess(-values[::-1], counts[::-1])[::-1]
    unit = counts.sum() / (12 * _STEPS**2)

    def ends(width: float) -> tuple[float, float]:
        bottom = float(np.interp(unit * width, below, values))
        top = float(np.interp(unit * width, above[::-1], values[::-1]))
        return min(bottom, 0.0), max(top, 0.0)

    narrow, wide = 0.0, max(high, 0.0) - min(low, 0.0)
    for _ in range(_HALVINGS):
        middle = (narrow + wide) / 2
        bottom, top = ends(middle)
        narrow, wide = (middle, wide) if top - bottom > middle else (narrow, middle)
    bottom, top = ends(wide)
    return max(low, bottom), min(high, top)


def symmetric_mse_range(observer: TensorObserver, bits: int) -> tuple[float, float]:
    """The clip at -a and a with the least squared error of symmetric codes, to the extremes where those are nearer.

    With q = 2^(bits - 1) - 1 a step is a / q, and the error of n values, taken at the middle of their bins, is

        sum over |x| > a of (|x| - a)^2 + n a^2 / (12 q^2),

    which is convex: at its minimum sum over |x| > a of (|x| - a) = n a / (12 q^2), found by bisection.
    """
    low, high = observer.bounds
    magnitudes = observer.magnitudes()
    filled = np.flatnonzero(magnitudes)
    if not filled.size:
        return low, high
    counts, sizes = magnitudes[filled].astype(np.float64), (filled.astype(np.float64) + 0.5) * observer.width
    sizes[-1] = largest = max(-low, high)
    beyond = _excess(-sizes[::-1], counts[::-1])[::-1]
    unit = counts.sum() / (12 * (2 ** (bits - 1) - 1) ** 2)
    narrow, wide = 0.0, largest
    for _ in range(_HALVINGS):
        middle = (narrow + wide) / 2
        # below the least size all values are beyond: the sum grows by one middle each
        left = float(np.interp(middle, sizes, beyond)) + counts.sum() * max(0.0, float(sizes[0]) - middle)
        narrow, wide = (middle, wide) if left > unit * middle else (narrow, middle)
    return max(low, -wide), min(high, wide)


def _dropped(total: int, percent: float) -> int:
    """How many of `total` values may be left out; 100 - 99.9 in floats would lose one in a thousand."""
    return math.floor(total * (100 - Fraction(str(percent))) / 100)


def _excess(values: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """At each of the ascending `values`, the sum of (it - x) over all x below it."""
    number, total = np.cumsum(counts) - counts, np.cumsum(counts * values) - counts * values
    excess: npt.NDArray[np.float64] = values * number - total
    return np.maximum.accumulate(np.maximum(excess, 0.0))
