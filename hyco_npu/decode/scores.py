"""From a drafter's logits to candidates: the likeliest tokens of every row, on one scale for all sources.

A source's log-probabilities are those of its logits at a temperature, plus a bias, at most 0: an MTP head and an SLM
are confident in different ways, and the tree ranks their drafts against each other. `hyco-npu fit-scores` finds both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hyco_npu.decode.errors import DecodeError, LogitsError

Candidate = tuple[int, float]
"""A token id of the verifier's vocabulary and its log-probability."""


@dataclass(frozen=True)
class SourceScore:
    """Scale of one source: log_softmax(logits / temperature) + bias."""

    temperature: float = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature) and math.isfinite(self.bias)):
            raise DecodeError(f"a source's scores need a temperature above 0 and a finite bias, got {self}")


def best_candidates(logits: np.ndarray, token_ids: np.ndarray, count: int, score: SourceScore) -> list[list[Candidate]]:
    """The `count` likeliest tokens of each row of `logits` [rows, columns], best first; ties go to the lower column.

    `token_ids` [columns] maps columns to the verifier's vocabulary. A token without probability is no candidate.
    Raises LogitsError for NaN, or a row of minus infinities.
    """
    scaled = logits / score.temperature
    top = scaled.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise LogitsError(f"a drafter's logits are not numbers: the largest of a row is {top[~np.isfinite(top)][0]}")
    log_sums = np.log(np.exp(scaled - top).sum(axis=1, keepdims=True))
    chosen = _top_columns(scaled, min(count, scaled.shape[1]))
    values = np.take_along_axis(scaled, chosen, axis=1) - top - log_sums + score.bias
    return [
        [(int(token_ids[c]), min(0.0, float(value))) for c, value in zip(*row, strict=True) if value > -np.inf]
        for row in zip(chosen, values, strict=True)
    ]


def _top_columns(values: np.ndarray, count: int) -> np.ndarray:
    """Columns [rows, count] of the largest values, in falling order, ties by column."""
    if count == 1:
        best: np.ndarray = values.argmax(axis=1)[:, None]
        return best
    # the count-th largest value bounds the candidates; equal ones at the bound are settled by the lower column
    bound = np.partition(values, values.shape[1] - count, axis=1)[:, -count]
    rows = []
    for row, least in zip(values, bound, strict=True):
        columns = np.flatnonzero(row >= least)
        rows.append(columns[np.argsort(-row[columns], kind="stable")][:count])
    return np.stack(rows)
