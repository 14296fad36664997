"""From a row of the verifier's logits to the distribution that its next token is drawn from.

Temperature, then top-k, then top-p: the order of transformers' warpers, with their treatment of ties. This module knows
nothing of trees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hyco_npu.decode.errors import LogitsError
from quant.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """How text is drawn. Temperature 0 is greedy: the filters then change nothing.

    top_k keeps the k likeliest tokens and what ties with the last of them; top_p the likeliest tokens whose sum first
    reaches it, at least one. Raises UsageError for values that mean nothing.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise UsageError(f"temperature {self.temperature}: give 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k {self.top_k}: give 1 or more, or leave it out to keep every token")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top_p {self.top_p}: give a number above 0 and at most 1")

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0

    def distribution(self, logits: np.ndarray) -> np.ndarray:
        """Float64 [vocabulary], sum 1, from `logits` [vocabulary]; at temperature 0 all of it on `best_token`.

        Raises LogitsError where the largest logit is no finite number.
        """
        best = best_token(logits)
        if self.greedy:
            one_hot = np.zeros(logits.shape[0])
            one_hot[best] = 1.0
            return one_hot
        # differences to the largest logit, so that no temperature overflows
        scaled = logits.astype(np.float64)
        scaled -= scaled[best]
        with np.errstate(over="ignore"):
            scaled /= self.temperature
        if self.top_k is not None and self.top_k < scaled.shape[0]:
            bound = np.partition(scaled, -self.top_k)[-self.top_k]
            scaled[scaled < bound] = -np.inf
        p = np.exp(scaled)
        p /= p.sum()
        return p if self.top_p is None else _nucleus(p, self.top_p)


def raw_distribution(logits: np.ndarray) -> np.ndarray:
    """The verifier's own probabilities, float64 [vocabulary]: temperature 1, no filter. Raises as `distribution`."""
    return Sampling(temperature=1.0).distribution(logits)


def best_token(logits: np.ndarray) -> int:
    """The likeliest token of a row [vocabulary], the lowest id on ties. Raises LogitsError as `distribution` does."""
    # argmax stops at NaN, so one look at its value finds NaN, infinity and a row of minus infinities
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        raise LogitsError(f"the largest of {logits.shape[0]} logits is {logits[best]}; the model gives no distribution")
    return best


def draw(p: np.ndarray, rng: np.random.Generator) -> int:
    """One token from a distribution [vocabulary]; never one of probability 0."""
    cumulative = p.cumsum()
    return int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))


def _nucleus(p: np.ndarray, top_p: float) -> np.ndarray:
    """Drop the least likely tokens whose sum is at most 1 - top_p, on ties the lower id first, never the likeliest."""
    tail = 1.0 - top_p
    # n tokens below tail / n sum to less than tail: all of them go, and only the others need sorting
    sure = p < min(tail / p.shape[0], p.max())
    others = np.flatnonzero(~sure)
    order = others[np.argsort(p[others], kind="stable")]
    dropped = p[sure].sum() + np.cumsum(p[order]) <= tail
    dropped[-1] = False
    kept = np.where(sure, 0.0, p)
    kept[order[dropped]] = 0.0
    kept /= kept.sum()
    return kept
