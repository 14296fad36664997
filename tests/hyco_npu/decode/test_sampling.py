"""Distributions against transformers' warpers, and the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hyco_npu.decode.errors import LogitsError
from hyco_npu.decode.sampling import Sampling, best_token, draw, raw_distribution
from quant.errors import UsageError

VOCABULARY = 262_144


def warped(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """transformers' own processing, in its order."""
    scores = TemperatureLogitsWarper(float(sampling.temperature))(None, torch.tensor(logits, dtype=torch.float64)[None])
    if sampling.top_k is not None:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p is not None:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return torch.softmax(scores, -1)[0].numpy()


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1, 2, 5, 40, 700]),
    temperature=st.sampled_from([0.05, 0.3, 0.7, 1.0, 2.0, 9.0]),
    top_k=st.sampled_from([None, 1, 2, 3, 40, 1000]),
    top_p=st.sampled_from([None, 1e-3, 0.13, 0.65, 0.9, 0.999, 1.0]),
)
def test_a_distribution_equals_the_warpers_of_transformers(
    seed: int, size: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size).astype(np.float32) * 4
    if seed % 3 == 0:
        logits[rng.random(size) < 0.3] = -np.inf
        logits[rng.integers(size)] = 1.5
    sampling = Sampling(temperature, top_k, top_p)
    p = sampling.distribution(logits)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p, warped(logits, sampling), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, 3), Sampling(1.0, 1), Sampling(0.7, 2, 0.8), Sampling(1.0, None, 0.5)]
)
@pytest.mark.parametrize("logits", [[1.0, 1, 1, 0, -1], [2.0, 1, 1, 1, 0], [0.0, 0, 0, 0], [3.0, 1, 3, 1, 3, 1, 3]])
def test_ties_at_a_bound_are_treated_as_transformers_does(sampling: Sampling, logits: list[float]) -> None:
    row = np.array(logits, np.float32)
    np.testing.assert_allclose(sampling.distribution(row), warped(row, sampling), atol=1e-12)


def test_temperature_comes_before_top_p() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    found = Sampling(2.0, None, 0.65).distribution(np.log(p))
    # square roots of p, cut to the three largest; the other order would give [.536 .464 0 0]
    expected = np.array([np.sqrt(0.4), np.sqrt(0.3), np.sqrt(0.2), 0.0])
    np.testing.assert_allclose(found, expected / expected.sum())
    np.testing.assert_allclose(found, [0.389, 0.337, 0.275, 0.0], atol=5e-4)


def test_top_k_comes_before_top_p() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    # of the two kept, .571 and .429, the second is in the last half; top-p first would keep it, .5 > .4
    np.testing.assert_allclose(Sampling(1.0, 2, 0.5).distribution(np.log(p)), [1.0, 0, 0, 0])


@pytest.mark.parametrize("top_p", [0.01, 0.9, 0.99999])
def test_top_p_over_the_whole_vocabulary(top_p: float) -> None:
    logits = (np.random.default_rng(3).normal(size=VOCABULARY) * 3).astype(np.float32)
    sampling = Sampling(0.9, None, top_p)
    p, expected = sampling.distribution(logits), warped(logits, sampling)
    assert np.count_nonzero(p) == np.count_nonzero(expected)
    np.testing.assert_allclose(p, expected, rtol=1e-9)


def test_the_smallest_top_p_keeps_the_likeliest_token_alone() -> None:
    for logits in (np.array([0.0, 2.0, 1.0]), np.zeros(7), np.log([0.5, 0.25, 0.25])):
        p = Sampling(1.0, None, 1e-300).distribution(logits)
        assert sorted(p)[-2:] == [0.0, 1.0]
        assert logits[p.argmax()] == logits.max()


@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (5, None), (None, 0.3), (1, 0.01)])
def test_temperature_0_is_one_hot_at_the_lowest_of_the_largest(top_k: int | None, top_p: float | None) -> None:
    logits = np.array([1.0, 7.0, 3.0, 7.0, 7.0], np.float32)
    np.testing.assert_array_equal(Sampling(0.0, top_k, top_p).distribution(logits), [0, 1, 0, 0, 0])
    assert best_token(logits) == 1


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-308, 5e-324])
def test_a_tiny_temperature_is_greedy_and_does_not_overflow(temperature: float) -> None:
    logits = np.array([-3e38, 29.5, 30.0, -30.0, -np.inf], np.float32)
    with np.errstate(all="raise", under="ignore"):
        p = Sampling(temperature).distribution(logits)
    np.testing.assert_array_equal(p, [0, 0, 1, 0, 0])


def test_a_huge_temperature_is_uniform() -> None:
    np.testing.assert_allclose(Sampling(1e300).distribution(np.array([-20.0, 0.0, 30.0])), [1 / 3] * 3)


def test_the_raw_distribution_is_a_softmax() -> None:
    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32) * 5
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1).numpy()
    np.testing.assert_allclose(raw_distribution(logits), expected, rtol=1e-12)


def test_the_logits_stay_as_they_are() -> None:
    logits = np.array([1.0, 2.0, 3.0])
    Sampling(0.5, 2, 0.9).distribution(logits)
    np.testing.assert_array_equal(logits, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(0.7, 2, 0.9)])
@pytest.mark.parametrize("logits", [[0.0, np.nan, 1.0], [-np.inf] * 3, [0.0, np.inf, 1.0], [np.nan] * 3])
def test_logits_that_are_not_numbers_are_refused(sampling: Sampling, logits: list[float]) -> None:
    with pytest.raises(LogitsError, match=r"the largest of 3 logits is (nan|-?inf)"):
        sampling.distribution(np.array(logits, np.float32))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"top_k": 0}, "top_k 0"),
        ({"top_k": -4}, "top_k -4"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.01}, "top_p 1.01"),
        ({"top_p": float("nan")}, "top_p nan"),
    ],
)
def test_values_that_mean_nothing_are_usage_errors(values: dict[str, float], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Sampling(**values)  # type: ignore[arg-type]


class Uniform:
    """A generator that gives the numbers of a list."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def test_a_draw_inverts_the_cumulative_distribution() -> None:
    p = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    last = float(np.nextafter(1.0, 0.0))
    rng = Uniform(0.0, 0.2499, 0.25, 0.7499, 0.75, last)
    assert [draw(p, rng) for _ in range(6)] == [1, 1, 3, 3, 4, 4]  # type: ignore[arg-type]


def test_a_draw_never_gives_a_token_without_probability() -> None:
    # sums a little above and below 1, as rounding leaves them
    for scale in (1 - 1e-15, 1.0, 1 + 1e-15):
        p = np.array([0.0, 0.1, 0.0, 0.7, 0.2, 0.0]) * scale
        assert draw(p, Uniform(float(np.nextafter(1.0, 0.0)))) == 4  # type: ignore[arg-type]
        assert draw(p, Uniform(0.0)) == 1  # type: ignore[arg-type]
