"""Drafts by the book: trees as sets of paths, every path run through transformers from the first token on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tests.export.tiny import SLIDING_WINDOW, last_rows, run_transformers

from .builders import HEAD_KEEP, HEAD_TEMPERATURE, SLM_KEEP, SLM_TEMPERATURE, embedding

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from calibration.states import HeadState
    from tests.export.tiny import TinyHead
    from tests.export.tiny_slm import TinySlm

Path = tuple[int, ...]


def log_probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(logits).double() / temperature, -1).numpy()


def best(log_p: np.ndarray, keep: np.ndarray, count: int) -> list[tuple[int, float]]:
    order = sorted(range(len(keep)), key=lambda column: -log_p[column])
    return [(int(keep[column]), float(log_p[column])) for column in order[:count]]


def slm_children(tiny: TinySlm, text: Sequence[int], path: Path, count: int) -> list[tuple[int, float]]:
    """transformers' `count` likeliest kept tokens behind text and path."""
    logits = tiny.reference([*text, *path])[-1][SLM_KEEP]
    return best(log_probabilities(logits, SLM_TEMPERATURE), SLM_KEEP, count)


@dataclass
class SlowTree:
    """Paths and their scores; `grow` runs the SLM on some, `step` on the best that were not run."""

    tiny: TinySlm
    text: Sequence[int]
    nodes: int
    children: int
    beam: int = 32
    edge: float = 0.0
    chain: Sequence[Path] = ()
    scores: dict[Path, float] = field(default_factory=dict)
    ran: set[Path] = field(default_factory=set)

    def add(self, path: Path, edge: float) -> None:
        """A path, whose last step has this log-probability; of two values the larger counts, for all behind it."""
        parent = self.scores.get(path[:-1], 0.0)
        gain = parent + edge - self.scores.get(path, -math.inf)
        if path not in self.scores:
            self.scores[path] = parent + edge
        elif gain > 0:
            for other in self.scores:
                if other[: len(path)] == path:
                    self.scores[other] += gain

    def grow(self, paths: Sequence[Path], max_depth: int = 99) -> None:
        found = [(path, slm_children(self.tiny, self.text, path, self.children)) for path in paths]
        for path, candidates in found:
            self.ran.add(path)
            for token, log_p in candidates if len(path) < max_depth else []:
                self.add((*path, token), log_p + self.edge)

    def step(self, passes: int, max_depth: int = 99) -> None:
        for _ in range(passes):
            kept = self.cut(max_depth)
            new = [p for p in sorted(kept, key=lambda p: -kept[p]) if p not in self.ran and len(p) < max_depth]
            self.grow(new[: self.beam], max_depth)

    def cut(self, max_depth: int = 99) -> dict[Path, float]:
        """The chain and the best others, `nodes` in all."""
        ranked = sorted(self.scores, key=lambda path: (-self.scores[path], len(path)))
        kept = list(self.chain)
        for path in ranked:
            if len(kept) < self.nodes and path not in kept and len(path) <= max_depth:
                kept.append(path)
        return {path: self.scores[path] for path in kept}


def head_chain(tiny: TinyHead, state: HeadState, steps: int, window: int | None) -> list[np.ndarray]:
    """transformers' log-probabilities [kept tokens] of every step, each with the very rows that it may see."""
    if window is not None:
        state = last_rows(state, {"full": window, "sliding": window})
    state = last_rows(state, {"sliding": SLIDING_WINDOW})
    found = []
    for _ in range(steps):
        hidden, logits = run_transformers(tiny.model, state, state.position)
        found.append(log_probabilities(logits[HEAD_KEEP], HEAD_TEMPERATURE))
        token = int(HEAD_KEEP[found[-1].argmax()])
        state = type(state)(token, state.position, embedding(token), hidden, state.keys, state.values)
    return found


def head_paths(steps: Sequence[np.ndarray], width: int, sibling_depth: int) -> tuple[list[Path], dict[Path, float]]:
    """(the chain's paths, log-probability of the last token of every path)."""
    path: Path = ()
    chain, edges = list[Path](), dict[Path, float]()
    for depth, log_p in enumerate(steps, start=1):
        for token, value in best(log_p, HEAD_KEEP, width if depth <= sibling_depth else 1):
            edges[*path, token] = value
        path = (*path, int(HEAD_KEEP[log_p.argmax()]))
        chain.append(path)
    return chain, edges
