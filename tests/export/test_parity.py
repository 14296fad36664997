"""Closed forms of the figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.mtp.samples import Outputs
from export.parity import CheckResult, Stage, compare, cosine, spread, sqnr_db


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


def test_only_shared_names_are_compared() -> None:
    """A prefill graph has no logits, a float graph more outputs: neither counts."""
    caches = np.array([[3.0, 4.0], [0.0, 2.0]], np.float32)
    changed = np.array([[4.0, 3.0], [0.0, 2.0]], np.float32)
    logits = np.array([[1.0, 2.0], [2.0, 1.0]], np.float32)
    for ours, theirs in (({}, {"logits": logits}), ({"logits": logits}, {}), ({}, {})):
        stage = compare("a", {"caches": changed, **ours}, "b", {"caches": caches, **theirs})
        assert stage.top1_agreement is None
        assert stage.cosine == pytest.approx(28 / 29)
        assert stage.lowest_cosine == pytest.approx(24 / 25)
        assert stage.sqnr_db == pytest.approx(10 * np.log10(29 / 2))
        assert stage.max_abs_error == 1.0


def test_without_logits_the_noise_is_that_of_all_outputs() -> None:
    reference = {"keys": array(3, 4)[None], "values": array(1, 0)[None]}
    found = {"keys": array(3, 4)[None], "values": array(1, 0.5)[None]}
    assert compare("a", found, "b", reference).sqnr_db == pytest.approx(10 * np.log10(26 / 0.25))


def stage_of(name: str, found: float) -> Stage:
    return Stage(name, "before", 1, cosine=found, lowest_cosine=0.0, sqnr_db=0.0, top1_agreement=None, max_abs_error=9)


@pytest.mark.parametrize(
    ("stages", "problems", "ok"),
    [
        ([], (), True),
        ([("qdq_cpu", 0.5)], (), True),  # what quantisation costs is reported, not judged
        ([("htp_simulator", 0.9999)], (), True),
        ([("htp_simulator", 0.99989)], (), False),
        ([("htp_simulator", 1.0), ("prefill_htp_simulator", 0.99)], (), False),
        ([("prefill_qdq_cpu", 0.0), ("prefill_htp_simulator", 1.0)], (), True),
        ([("htp_simulator", 1.0)], ("step.bin: missing",), False),
    ],
)
def test_what_is_judged(stages: list[tuple[str, float]], problems: tuple[str, ...], ok: bool) -> None:
    assert CheckResult([stage_of(*stage) for stage in stages], problems=problems).ok is ok


@given(st.integers(1, 60), st.none() | st.integers(1, 60))
def test_spread(count: int, limit: int | None) -> None:
    """As many as there may be, rising, beginning with the first, no gap a whole step larger than another."""
    found = spread(count, limit)
    assert len(found) == (count if limit is None else min(count, limit))
    assert found[0] == 0
    assert found[-1] < count
    gaps = np.diff([*found, count])
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1
