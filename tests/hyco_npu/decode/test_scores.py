"""Candidates against torch's log_softmax and topk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyco_npu.decode.errors import DecodeError, LogitsError
from hyco_npu.decode.scores import SourceScore, best_candidates

PLAIN = SourceScore()


def reference(logits: np.ndarray, temperature: float, bias: float) -> np.ndarray:
    scores = torch.log_softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1) + bias
    return scores.clamp(max=0.0).numpy()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([1, 2, 3, 8, 300]),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    bias=st.sampled_from([0.0, -1.5, 0.4]),
)
def test_candidates_equal_torch(seed: int, count: int, temperature: float, bias: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.permuted(np.tile(np.linspace(-9, 9, 257, dtype=np.float32), (3, 1)), axis=1)
    token_ids = rng.permutation(1000)[:257]
    found = best_candidates(logits, token_ids, count, SourceScore(temperature, bias))
    expected = reference(logits, temperature, bias)
    columns = torch.topk(torch.tensor(logits), min(count, 257)).indices.numpy()
    for row in range(3):
        assert [token for token, _ in found[row]] == token_ids[columns[row]].tolist()
        np.testing.assert_allclose([value for _, value in found[row]], expected[row, columns[row]], atol=5e-6)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), columns=st.integers(1, 12), count=st.integers(1, 14))
def test_ties_go_to_the_lower_column(seed: int, columns: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, 3, (4, columns)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[:, 0] = 1.0
    token_ids = np.arange(columns) + 50
    for row, candidates in zip(logits, best_candidates(logits, token_ids, count, PLAIN), strict=True):
        order = sorted(range(columns), key=lambda c: (-row[c], c))
        expected = [c + 50 for c in order if row[c] > -np.inf][:count]
        assert [token for token, _ in candidates] == expected


def test_a_token_without_probability_is_no_candidate() -> None:
    # a head that scores some of its vocabulary leaves the rest at minus infinity
    logits = np.full((2, 6), -np.inf, np.float32)
    logits[0, [4, 1]] = [2.0, 1.0]
    logits[1, 3] = -7.0
    found = best_candidates(logits, np.arange(6), 4, PLAIN)
    assert [[token for token, _ in row] for row in found] == [[4, 1], [3]]
    assert sum(np.exp(value) for _, value in found[0]) == pytest.approx(1.0)
    assert found[1] == [(3, 0.0)]


def test_a_bias_never_lifts_a_score_above_0() -> None:
    (found,) = best_candidates(np.log([[0.7, 0.2, 0.1]]), np.arange(3), 3, SourceScore(1.0, 1.0))
    np.testing.assert_allclose([value for _, value in found], [0.0, np.log(0.2) + 1, np.log(0.1) + 1])


def test_large_logits_do_not_overflow() -> None:
    (found,) = best_candidates(np.array([[3e4, 3e4, -3e4]], np.float32), np.arange(3), 3, SourceScore(0.5))
    np.testing.assert_allclose([value for _, value in found], np.log(0.5) - [0.0, 0.0, 120000.0], rtol=1e-6)


@pytest.mark.parametrize("bad", [[np.nan, 0.0, 1.0], [-np.inf] * 3, [0.0, np.inf, 1.0]])
@pytest.mark.parametrize("count", [1, 2])
def test_logits_that_are_not_numbers_are_refused(bad: list[float], count: int) -> None:
    with pytest.raises(LogitsError, match="the largest of a row is"):
        best_candidates(np.array([[0.0, 1.0, 2.0], bad]), np.arange(3), count, PLAIN)


@pytest.mark.parametrize(
    "values", [(0.0, 0.0), (-1.0, 0.0), (np.nan, 0.0), (np.inf, 0.0), (1.0, np.nan), (1.0, np.inf)]
)
def test_a_scale_that_means_nothing_is_refused(values: tuple[float, float]) -> None:
    with pytest.raises(DecodeError, match="temperature above 0 and a finite bias"):
        SourceScore(*values)
