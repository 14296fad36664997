"""Which path of a verified tree is emitted, and which token follows it.

A rule sees the tree and the verifier's logits of all rows, and answers with a path and a bonus token. It knows neither
models nor caches; whatever has `accept` is a rule. The drafts here are a drafter's likeliest tokens, not draws from
its distribution: rules that weigh the verifier's p against a drafter's q (p/q) are for drawn drafts and bias these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np

from hyco_npu.decode.errors import DecodeError, LogitsError
from hyco_npu.decode.sampling import Sampling, best_token, draw, raw_distribution
from hyco_npu.decode.tree import ROOT
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hyco_npu.decode.config import AcceptanceSettings
    from hyco_npu.decode.tree import DraftTree

HEAD_SOURCE = "mtp"
MEDUSA_EPSILON = 0.09

T = TypeVar("T")


@dataclass(frozen=True)
class Accepted:
    """Rows of the tree from the root's child down, and the token behind the last of them (behind the root: no rows)."""

    rows: tuple[int, ...]
    bonus: int


class AcceptanceRule(Protocol):
    """Chooses a path."""

    def accept(self, tree: DraftTree, logits: np.ndarray, rng: np.random.Generator) -> Accepted:
        """Path and bonus from `logits` [rows, vocabulary], each row's for the token behind it.

        Raises DecodeError where rows and logits do not match, LogitsError where a visited row has no distribution.
        """
        ...


@dataclass(frozen=True)
class Exact:
    """Draw one token at every node: a child that holds it is the next node, otherwise it is the bonus.

    Emits what plain sampling emits, in distribution; at temperature 0, the greedy text itself.
    """

    sampling: Sampling

    def accept(self, tree: DraftTree, logits: np.ndarray, rng: np.random.Generator) -> Accepted:
        """Draws down the tree until a draw is no child."""
        rows = _Rows(self.sampling, tree, logits)
        path: list[int] = []
        while True:
            node = path[-1] if path else ROOT
            token = rows.draw(node, rng)
            child = tree.child(node, token)
            if child is None:
                return Accepted(tuple(path), token)
            path.append(child)


@dataclass(frozen=True)
class Epsilon:
    """A child may be accepted if the verifier gives it `epsilon` or more. Does not preserve the distribution.

    The HyCo paper names the rule and the threshold 0.005; how it reads in detail is this project's guess, and so an
    option. order: "sample_first" draws as `Exact` does and turns to the likeliest acceptable child where the draw is no
    child; "max_p" takes the likeliest acceptable child without a draw; "longest" the child with the longest acceptable
    path, of equally long ones the likeliest path. Where these two accept nothing, they draw as `Exact` does.
    distribution: what is compared with `epsilon`, "processed" as draws are made from, or "raw". nodes: "chain" confines
    the rule to children that the MTP head drafted. Every bonus is a draw from the processed distribution, so `epsilon`
    above 1 is `Exact`. Raises UsageError for an `epsilon` of 0 or less: it would accept what has no probability.
    """

    sampling: Sampling
    epsilon: float = 0.005
    order: Literal["sample_first", "max_p", "longest"] = "sample_first"
    distribution: Literal["raw", "processed"] = "processed"
    nodes: Literal["all", "chain"] = "all"

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon {self.epsilon}: give a probability above 0, or the rule `exact`")

    def accept(self, tree: DraftTree, logits: np.ndarray, rng: np.random.Generator) -> Accepted:
        """Draws down the tree, with the rule before the draw or after it."""
        rows = _Rows(self.sampling, tree, logits)
        path: list[int] = []
        while True:
            path += self._before_draw(rows, path[-1] if path else ROOT)
            node = path[-1] if path else ROOT
            token = rows.draw(node, rng)
            child = tree.child(node, token)
            if child is None and self.order == "sample_first":
                child = self._likeliest(rows, node)
            if child is None:
                return Accepted(tuple(path), token)
            path.append(child)

    def _before_draw(self, rows: _Rows, node: int) -> list[int]:
        """The path behind `node` that the rule takes before anything is drawn."""
        if self.order == "sample_first":
            return []
        if self.order == "longest":
            return _longest_path(rows.tree, node, lambda row: self._probability(rows, row))
        path: list[int] = []
        child = self._likeliest(rows, node)
        while child is not None:
            path.append(child)
            child = self._likeliest(rows, child)
        return path

    def _likeliest(self, rows: _Rows, node: int) -> int | None:
        """The acceptable child with the highest probability, on ties the lowest token."""
        tree = rows.tree
        found = [
            (p, -tree.token_ids[row], row)
            for row in tree.children(node)
            if (p := self._probability(rows, row)) is not None
        ]
        return max(found)[2] if found else None

    def _probability(self, rows: _Rows, row: int) -> float | None:
        """What the verifier gives a row's token, where that makes the row acceptable."""
        if self.nodes == "chain" and HEAD_SOURCE not in rows.tree.sources[row].split("+"):
            return None
        p = rows.probability(row, raw=self.distribution == "raw")
        return p if p >= self.epsilon else None


@dataclass(frozen=True)
class Typical:
    """Medusa's typical acceptance: child x is acceptable if p(x) > min(epsilon, delta * exp(-entropy(p))).

    The longest acceptable path is taken, of equally long ones the likeliest, and the bonus is drawn behind it. At
    temperature 0 it is greedy. Source: Cai et al. 2024, arXiv 2401.10774, and `evaluate_posterior` of their
    medusa/model/utils.py, whose defaults these are; their bonus is the likeliest token.
    Raises UsageError unless `epsilon` and `delta` are above 0.
    """

    sampling: Sampling
    epsilon: float = MEDUSA_EPSILON
    delta: float = 0.3

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and self.delta > 0):
            raise UsageError(f"epsilon {self.epsilon} and delta {self.delta}: give two numbers above 0")

    def accept(self, tree: DraftTree, logits: np.ndarray, rng: np.random.Generator) -> Accepted:
        """The whole path first, then one draw."""
        if self.sampling.greedy:
            return Exact(self.sampling).accept(tree, logits, rng)
        rows = _Rows(self.sampling, tree, logits)
        bounds: dict[int, float] = {}

        def probability(row: int) -> float | None:
            parent = tree.parents[row] or ROOT
            if parent not in bounds:
                bounds[parent] = min(self.epsilon, self.delta * math.exp(-entropy(rows.processed(parent))))
            p = rows.probability(row)
            return p if p > bounds[parent] else None

        path = _longest_path(tree, ROOT, probability)
        return Accepted(tuple(path), rows.draw(path[-1] if path else ROOT, rng))


def rule_of(settings: AcceptanceSettings, sampling: Sampling) -> AcceptanceRule:
    """The rule that a configuration names. Raises UsageError for thresholds that mean nothing."""
    if settings.rule == "epsilon":
        return Epsilon(sampling, settings.epsilon, settings.order, settings.distribution, settings.nodes)
    if settings.rule == "typical":
        epsilon = settings.epsilon if "epsilon" in settings.model_fields_set else MEDUSA_EPSILON
        return Typical(sampling, epsilon, settings.delta)
    return Exact(sampling)


def entropy(p: np.ndarray) -> float:
    """Of a distribution [vocabulary], in nats."""
    positive = p[p > 0]
    return float(-(positive * np.log(positive)).sum())


class _Rows:
    """The distributions of the rows that a rule visits, each made once, when it is asked for."""

    def __init__(self, sampling: Sampling, tree: DraftTree, logits: np.ndarray) -> None:
        if logits.ndim != 2 or logits.shape[0] != tree.rows:
            raise DecodeError(f"a tree of {tree.rows} rows was verified with logits of shape {logits.shape}")
        self.tree = tree
        self._sampling, self._logits = sampling, logits
        self._processed: dict[int, np.ndarray] = {}
        self._raw: dict[int, np.ndarray] = {}

    def processed(self, row: int) -> np.ndarray:
        """What the token behind `row` is drawn from."""
        if row not in self._processed:
            self._processed[row] = self._of(row, self._sampling.distribution)
        return self._processed[row]

    def probability(self, row: int, raw: bool = False) -> float:
        """What the verifier gives the token of `row`, which is not the root, behind its parent."""
        parent = self.tree.parents[row] or ROOT
        if not raw:
            p = self.processed(parent)
        else:
            if parent not in self._raw:
                self._raw[parent] = self._of(parent, raw_distribution)
            p = self._raw[parent]
        return float(p[self.tree.token_ids[row]])

    def draw(self, row: int, rng: np.random.Generator) -> int:
        """A token behind `row`; at temperature 0 without a distribution over the whole vocabulary."""
        return self._of(row, best_token) if self._sampling.greedy else draw(self.processed(row), rng)

    def _of(self, row: int, function: Callable[[np.ndarray], T]) -> T:
        try:
            return function(self._logits[row])
        except LogitsError as error:
            raise LogitsError(f"row {row} of the tree, token {self.tree.token_ids[row]}: {error}") from error


def _longest_path(tree: DraftTree, start: int, probability: Callable[[int], float | None]) -> list[int]:
    """Rows behind `start`, each acceptable (`probability` is not None); of the longest paths the likeliest."""
    reached = {start: (0, 0.0)}
    for row in range(start + 1, tree.rows):
        parent = tree.parents[row]
        if parent is not None and parent in reached and (p := probability(row)) is not None:
            length, log_likelihood = reached[parent]
            reached[row] = (length + 1, log_likelihood + math.log(p))
    end = max(reached, key=reached.__getitem__)
    return list(tree.path(end)[tree.depths[start] :])
