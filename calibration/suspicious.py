"""Tensors whose range deserves a look: not finite, dead, saturated by a bound that is given, or ruled by outliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from calibration.range_methods import largest_magnitude

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calibration.observations import Bounds, Observations
    from calibration.observers import TensorObserver

Kind = Literal["non-finite", "dead", "saturated", "outliers"]
OUTLIER_RATIO = 8.0
"""A greatest value so many times the 99.99th percentile takes three of the 16 bits from nearly all others."""
SATURATED_SHARE = 0.01
_PERCENT = 99.99


@dataclass(frozen=True)
class Finding:
    """One reason to look at a tensor.

    low, high: its extremes (of finite values). p9999: the size that 99.99% of the values other than 0 stay within.
    ratio: greatest size / p9999. share: the part that is not finite or beyond `bound`, where that is the reason.
    """

    name: str
    kind: Kind
    low: float
    high: float
    p9999: float
    ratio: float | None
    share: float | None = None
    bound: Bounds | None = None


def suspicious(observations: Observations) -> list[Finding]:
    """All findings, the gravest kind first, then by name."""
    order = ("non-finite", "dead", "saturated", "outliers")
    found = [one for name in observations.tensors for one in _findings(observations, name)]
    return sorted(found, key=lambda one: (order.index(one.kind), one.name))


def outlier_ratio(observer: TensorObserver) -> float | None:
    """Greatest size / 99.99th percentile of the sizes; None where all values are 0."""
    usual = largest_magnitude(observer, _PERCENT)
    return max(-observer.low, observer.high) / usual if usual else None


def _findings(observations: Observations, name: str) -> Iterator[Finding]:
    observer, subject = observations.tensors[name], observations.subject

    def finding(kind: Kind, share: float | None = None, bound: Bounds | None = None) -> Finding:
        usual = largest_magnitude(observer, _PERCENT)
        return Finding(name, kind, observer.low, observer.high, usual, outlier_ratio(observer), share, bound)

    if observer.nonfinite:
        yield finding("non-finite", observer.nonfinite / observer.count)
    if observer.low >= observer.high:
        yield finding("dead")
    bound = subject.limits.get(name) or subject.given.get(name)
    if bound is not None:
        share = observer.share_outside(*bound)
        if share > SATURATED_SHARE:
            yield finding("saturated", share, bound)
    ratio = outlier_ratio(observer)
    # a bound decides such a tensor's range, however far its values go
    if bound is None and ratio is not None and ratio > OUTLIER_RATIO:
        yield finding("outliers")
