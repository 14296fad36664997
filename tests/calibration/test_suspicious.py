"""Which tensors are reported, and with what figures."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.observations import Observations, Subject
from calibration.observers import TensorObserver
from calibration.suspicious import suspicious


def report(arrays: dict[str, np.ndarray], **bounds: dict[str, tuple[float, float]]) -> Observations:
    tensors = {}
    for name, array in arrays.items():
        tensors[name] = TensorObserver()
        tensors[name].observe(array.astype(np.float32))
    return Observations(Subject("mtp", {}, 1, {}, **bounds), (0,), tensors)


NORMAL = np.random.default_rng(0).standard_normal(100_000)


def test_ordinary_tensors_are_left_alone() -> None:
    assert suspicious(report({"normal": NORMAL, "padded": np.concatenate([NORMAL, np.zeros(10**6)])})) == []


def test_outliers_are_named_with_their_ratio() -> None:
    array = np.append(NORMAL, [-200.0])
    (found,) = suspicious(report({"normal": NORMAL, "spiky": array}))
    assert (found.name, found.kind, found.low) == ("spiky", "outliers", -200.0)
    usual = np.quantile(np.abs(array), 0.9999, method="inverted_cdf")
    assert found.p9999 == pytest.approx(usual, abs=0.1)
    assert found.ratio == pytest.approx(200 / usual, rel=0.03)
    assert suspicious(report({"mild": np.append(NORMAL, [3.0 * usual])})) == []


@pytest.mark.parametrize("array", [np.zeros(8), np.full(8, 2.5)])
def test_dead(array: np.ndarray) -> None:
    (found,) = suspicious(report({"still": array}))
    assert (found.kind, found.low, found.high) == ("dead", array[0], array[0])


@pytest.mark.parametrize("source", ["limits", "given"])
def test_saturated_beyond_a_bound(source: str) -> None:
    bounds = {"a": (-1.0, 1.0), "b": (-4.0, 4.0)}
    (found,) = suspicious(report({"a": NORMAL, "b": NORMAL}, **{source: bounds}))
    assert (found.name, found.kind, found.bound) == ("a", "saturated", (-1.0, 1.0))
    assert found.share == pytest.approx(np.mean(np.abs(NORMAL) > 1), abs=2e-3)


def test_outliers_beyond_a_bound_do_not_set_the_range() -> None:
    assert suspicious(report({"a": np.append(NORMAL, [500.0])}, limits={"a": (-5.0, 5.0)})) == []


def test_what_is_not_finite_comes_first() -> None:
    found = suspicious(report({"a": np.zeros(3), "b": np.append(NORMAL[:99], [np.nan])}))
    assert [(one.name, one.kind) for one in found] == [("b", "non-finite"), ("a", "dead")]
    assert found[0].share == 0.01
