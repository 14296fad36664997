"""Candidates out of codes against hyco_npu.decode.scores over the decoded logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from export.engines.graph_io import BoundaryTensor
from hyco_npu.decode.scores import SourceScore, best_candidates

from .conftest import RefusedError

if TYPE_CHECKING:
    from .conftest import Native

pytestmark = pytest.mark.native
TOLERANCE = 2e-5
"""The reference sums thousands of exponentials in float32."""
EXACT_TOLERANCE = 1.5e-6
"""About 1e-6 by the documentation; beside it half a unit in the last place of a float32 near -11."""


def decoded(codes: list[np.ndarray], chunks: list[dict[str, Any]]) -> np.ndarray:
    parts = [
        BoundaryTensor("logits", "uint16", of_chunk.shape, chunk["scale"], chunk["zero_point"]).decode(of_chunk)
        for of_chunk, chunk in zip(codes, chunks, strict=True)
    ]
    return np.concatenate(parts, axis=1)


def compare(native: Native, codes: list[np.ndarray], chunks: list[dict[str, Any]], count: int, **how: Any) -> None:
    logits = decoded(codes, chunks)
    token_ids = np.arange(logits.shape[1]) * 3 + 5
    score = SourceScore(how.get("temperature", 1.0), how.get("bias", 0.0))
    wanted = best_candidates(logits, token_ids, count, score, how.get("softcap"))
    arrays = {f"codes_{i}": of_chunk for i, of_chunk in enumerate(codes)} | {"token_ids": token_ids}
    fields = {"temperature": score.temperature, "bias": score.bias, "softcap": how.get("softcap"), "count": count}
    found = native.probe("topk", arrays, chunks=chunks, **fields)
    assert [row["likeliest"] for row in found] == [int(token_ids[column]) for column in logits.argmax(axis=1)]
    for row, of_row in zip(found, wanted, strict=True):
        assert [token for token, _ in row["best"]] == [token for token, _ in of_row]
        np.testing.assert_allclose([p for _, p in row["best"]], [p for _, p in of_row], atol=TOLERANCE, rtol=0)
        assert all(p <= 0 for _, p in row["best"])


def random_codes(rng: np.random.Generator, rows: int, columns: list[int], spread: float) -> list[np.ndarray]:
    codes = [rng.normal(30000, spread, (rows, n)).clip(0, 65535).astype(np.uint16) for n in columns]
    # an outlier is what a confident row looks like
    codes[0][:, 0] = 60000
    return codes


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize(("temperature", "bias"), [(1.0, 0.0), (0.7, -0.3), (1.6, 0.4)])
@pytest.mark.parametrize("count", [1, 4, 8])
def test_best_tokens_of_several_chunks(
    native: Native, softcap: float | None, temperature: float, bias: float, count: int
) -> None:
    rng = np.random.default_rng(count)
    scales = (60 / 65535, 60 / 65535, 45 / 65535)
    chunks = [{"scale": scale, "zero_point": 32000 + 500 * i} for i, scale in enumerate(scales)]
    codes = random_codes(rng, 5, [1000, 517, 63], 3000.0)
    compare(native, codes, chunks, count, softcap=softcap, temperature=temperature, bias=bias)


def test_ties_go_to_the_lower_column_within_and_across_chunks(native: Native) -> None:
    chunks = [{"scale": 0.001, "zero_point": 30000}] * 2
    few_values = [np.random.default_rng(i).integers(40000, 40003, (6, 130)).astype(np.uint16) for i in range(2)]
    compare(native, few_values, chunks, 8)


def test_codes_that_the_softcap_makes_equal_tie(native: Native) -> None:
    """tanh is exactly 1 from 9 on: 2,000 codes have one value, and columns decide."""
    codes = [np.random.default_rng(3).integers(63000, 65000, (4, 300)).astype(np.uint16)]
    compare(native, codes, [{"scale": 0.01, "zero_point": 0}], 8, softcap=30.0)


def test_more_candidates_than_columns(native: Native) -> None:
    compare(native, random_codes(np.random.default_rng(0), 2, [3, 2], 100.0), [{"scale": 0.01, "zero_point": 0}] * 2, 9)


def test_rows_far_below_the_range_keep_their_precision(native: Native) -> None:
    """A range of 600 nats: exponentials relative to its top would all be 0."""
    codes = [np.random.default_rng(1).integers(100, 1500, (3, 400)).astype(np.uint16)]
    compare(native, codes, [{"scale": 600 / 65535, "zero_point": 32768}], 5)


def hard_rows(rng: np.random.Generator, columns: int) -> np.ndarray:
    """Rows that sums of look-ups get wrong first: flat, peaked, at the ends of the codes, noise over all of them."""
    rows = {
        "equal": np.full(columns, 31234),
        "lowest": np.zeros(columns),
        "highest": np.full(columns, 65535),
        "both ends": np.arange(columns) % 2 * 65535,
        "one peak": np.where(np.arange(columns) == columns - 1, 65535, 0),
        "small peak": np.where(np.arange(columns) == columns // 2, 30400, 30000),
        "two peaks": np.where(np.arange(columns) % (columns - 1) == 0, 50000, 20000),
        "ramp": np.arange(columns) * 65535 // (columns - 1),
        "noise": rng.integers(0, 65536, columns),
        "low noise": rng.integers(0, 700, columns),
        "narrow": rng.normal(28000, 300, columns),
        "wide": rng.normal(28000, 9000, columns).clip(0, 65535),
    }
    return np.stack(list(rows.values())).astype(np.uint16)


@pytest.mark.parametrize("range_nats", [0.5, 70.0, 140.0, 600.0])
@pytest.mark.parametrize("columns", [[16384, 4099], [70]])
def test_log_probabilities_of_hard_rows_against_float64(native: Native, range_nats: float, columns: list[int]) -> None:
    """A float32 is exact to 1e-6 here because logits are compared with the row's largest before they are added."""
    scale = float(np.float32(range_nats / 65535))
    rows = hard_rows(np.random.default_rng(5), sum(columns))
    codes = np.split(rows, np.cumsum(columns)[:-1], axis=1)
    chunks = [{"scale": scale, "zero_point": 0} for _ in columns]
    arrays: dict[str, np.ndarray] = {f"codes_{i}": of_chunk for i, of_chunk in enumerate(codes)}
    arrays["token_ids"] = np.arange(rows.shape[1])
    found = native.probe("topk", arrays, chunks=chunks, temperature=1.0, bias=0.0, softcap=None, count=4)
    logits = decoded(codes, chunks).astype(np.float64)
    below_top = logits - logits.max(axis=1, keepdims=True)
    wanted = below_top - np.log(np.exp(below_top).sum(axis=1, keepdims=True))
    for row, of_row in zip(found, wanted, strict=True):
        best = np.argsort(-of_row, kind="stable")[:4]
        assert [token for token, _ in row["best"]] == best.tolist()
        np.testing.assert_allclose([p for _, p in row["best"]], of_row[best], atol=EXACT_TOLERANCE, rtol=1.2e-7)


def test_a_keep_set_of_another_size_is_refused(native: Native) -> None:
    arrays = {"codes_0": np.zeros((1, 4), np.uint16), "token_ids": np.arange(5)}
    with pytest.raises(RefusedError, match="4 columns, the keep set 5"):
        native.probe(
            "topk", arrays, chunks=[{"scale": 1.0, "zero_point": 0}], temperature=1.0, bias=0.0, softcap=None, count=1
        )
