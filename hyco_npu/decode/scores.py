"""From a drafter's logits to candidates: the likeliest tokens of every row, on one scale for all sources.

A source's log-probabilities are those of its logits at a temperature, plus a bias, at most 0: an MTP head and an SLM
are confident in different ways, and the tree ranks their drafts against each other. `hyco-npu fit-scores` finds both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

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


def best_candidates(
    logits: np.ndarray, token_ids: np.ndarray, count: int, score: SourceScore, softcap: float | None = None
) -> list[list[Candidate]]:
    """The `count` likeliest tokens of each row of `logits` [rows, columns], best first; ties go to the lower column.

    `token_ids` [columns] maps columns to the verifier's vocabulary; logits are bounded by `softcap` first, where the
    model has one. A token without probability is no candidate. Raises LogitsError for NaN, or a row of minus
    infinities.
    """
    scaled = _scaled(torch.from_numpy(logits), score.temperature, softcap)
    best, chosen = _top_columns(scaled, min(count, scaled.shape[1]))
    top = best[:, :1]
    if not np.isfinite(top).all():
        raise LogitsError(f"a drafter's logits are not numbers: the largest of a row is {top[~np.isfinite(top)][0]}")
    # differences to the largest keep their precision where logits are large
    log_sums = scaled.sub_(torch.from_numpy(top.copy())).exp_().sum(dim=1, keepdim=True).log_().numpy()
    values = np.minimum(best - top - log_sums + score.bias, 0.0)
    return [
        [pair for pair in zip(*row, strict=True) if pair[1] > -math.inf]
        for row in zip(token_ids[chosen].tolist(), values.tolist(), strict=True)
    ]


def _scaled(logits: torch.Tensor, temperature: float, softcap: float | None) -> torch.Tensor:
    """Logits, capped and over the temperature, in memory of their own."""
    if softcap is None:
        return logits * (1.0 / temperature)
    # c tanh(x / c) = 2 c sigmoid(2 x / c) - c: torch's sigmoid takes a quarter of its tanh's time
    return (logits * (2.0 / softcap)).sigmoid_().mul_(2.0 * softcap / temperature).sub_(softcap / temperature)


def _top_columns(values: torch.Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest values of each row in falling order, and their columns; of equal ones the lower first."""
    best, columns = (part.numpy() for part in values.topk(min(count + 1, values.shape[1]), dim=1))
    # topk leaves the order of equal values open, and which of them it takes
    for row in np.flatnonzero((best[:, 1:] == best[:, :-1]).any(axis=1)):
        columns[row, :count] = values[row].sort(descending=True, stable=True).indices[:count]
    return best[:, :count], columns[:, :count]
