"""Closed forms of the figures."""

from __future__ import annotations

import numpy as np
import pytest

from export.mtp.samples import Outputs
from export.parity import compare, cosine, sqnr_db


def array(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((1, 0), (1, 0), 1.0),
        ((1, 0), (0, 5), 0.0),
        ((1, 0), (-3, 0), -1.0),
        ((1, 0), (1, 1), 0.5**0.5),
        ((3, 4), (4, 3), 24 / 25),
        ((0, 0), (1, 1), 0.0),
        ((np.nan, 1), (1, 1), 0.0),
        ((1e30, 1e30), (1e30, 1e30), 1.0),
    ],
)
def test_cosine(a: tuple[float, ...], b: tuple[float, ...], expected: float) -> None:
    assert cosine(array(*a), array(*b)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("signal", "noisy", "expected"),
    [
        ((10, 0), (10, 1), 20.0),  # power 50 over 0.5
        ((1, 1), (1.5, 0.5), 10 * np.log10(4)),
        ((1, 1), (1, 1), 200.0),
        ((0, 0), (1, 1), 0.0),
        ((1, 1), (np.nan, 1), 0.0),
    ],
)
def test_sqnr(signal: tuple[float, ...], noisy: tuple[float, ...], expected: float) -> None:
    assert sqnr_db(array(*signal), array(*noisy)) == pytest.approx(expected)


def test_compare() -> None:
    reference = Outputs(logits=np.array([[3.0, 4.0], [0.0, 2.0]], np.float32), hidden=np.eye(2, dtype=np.float32))
    found = Outputs(
        logits=np.array([[4.0, 3.0], [0.0, 2.0]], np.float32), hidden=np.array([[1, 0.75], [0, 1]], np.float32)
    )
    stage = compare("new", found.named, "old", reference.named)
    assert (stage.name, stage.reference, stage.samples) == ("new", "old", 2)
    assert stage.cosine == pytest.approx(2 / np.sqrt(2 * 2.5625))  # hidden, below the logits' 28 / 29
    assert stage.lowest_cosine == pytest.approx(0.8)  # (1, 0) against (1, 0.75)
    assert stage.sqnr_db == pytest.approx(10 * np.log10(29 / 2))  # over the logits only
    assert stage.top1_agreement == 0.5
    assert stage.max_abs_error == 1.0
