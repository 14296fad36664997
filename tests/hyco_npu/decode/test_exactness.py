"""What the exact rule emits has the verifier's distribution, bonus and later rounds included; wrong rules fail."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.stats
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hyco_npu.decode.acceptance import Accepted, Epsilon, Exact
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.tree import DraftTree, GrowingTree
from tests.hyco_npu.decode.scripted import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOCABULARY = 4
TEXTS = 1200
P, Q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.6, 0.2, 0.1])
"""The example of the case list: the siblings are the two likeliest of q, tokens 1 and 2."""
SIBLINGS = DraftTree((0, 1, 2), (None, 0, 0), (0.0, -0.5, -1.6), ("root", "slm", "slm"))


def total_variation(counts: np.ndarray, p: np.ndarray) -> float:
    return float(0.5 * np.abs(counts / counts.sum() - p).sum())


def first_tokens(rule: Any, draws: int) -> np.ndarray:
    """How often each token is the first that one round on `SIBLINGS` emits."""
    logits, rng, counts = np.log(np.stack([P] * 3)), np.random.default_rng(0), np.zeros(VOCABULARY)
    for _ in range(draws):
        found = rule.accept(SIBLINGS, logits, rng)
        counts[SIBLINGS.token_ids[found.rows[0]] if found.rows else found.bonus] += 1
    return counts


@dataclass(frozen=True)
class Ratio:
    """WRONG: accepts with p/q as if the siblings had been drawn from q; the bonus comes from the residual."""

    sampling: Sampling

    def accept(self, tree: DraftTree, logits: np.ndarray, rng: np.random.Generator) -> Accepted:
        path: list[int] = []
        while True:
            node = path[-1] if path else 0
            p, taken = self.sampling.distribution(logits[node]), None
            for child in tree.children(node):
                token = tree.token_ids[child]
                if rng.random() < min(1.0, p[token] / Q[token]):
                    taken = child
                    break
                p = np.maximum(p - Q, 0)
                p = p / p.sum()
            if taken is None:
                return Accepted(tuple(path), int(rng.choice(VOCABULARY, p=p)))
            path.append(taken)


@dataclass(frozen=True)
class Independent:
    """WRONG: tests each sibling with its p as if the ones before it had not been refused; bonus from the rest of p."""

    sampling: Sampling

    def accept(self, tree: DraftTree, logits: np.ndarray, rng: np.random.Generator) -> Accepted:
        path: list[int] = []
        while True:
            node = path[-1] if path else 0
            p = self.sampling.distribution(logits[node])
            taken = [child for child in tree.children(node) if rng.random() < p[tree.token_ids[child]]]
            if not taken:
                rest = p.copy()
                rest[[tree.token_ids[child] for child in tree.children(node)]] = 0
                return Accepted(tuple(path), int(rng.choice(VOCABULARY, p=rest / rest.sum())))
            path.append(taken[0])


@dataclass(frozen=True)
class StaleBonus:
    """WRONG: the bonus comes from the distribution in front of the last accepted row."""

    sampling: Sampling

    def accept(self, tree: DraftTree, logits: np.ndarray, rng: np.random.Generator) -> Accepted:
        found = Exact(self.sampling).accept(tree, logits, rng)
        stale = tree.parents[found.rows[-1]] if found.rows else 0
        return Accepted(found.rows, int(rng.choice(VOCABULARY, p=self.sampling.distribution(logits[stale]))))


def test_one_node_with_two_siblings_has_the_verifiers_distribution() -> None:
    assert total_variation(first_tokens(Exact(Sampling(1.0)), 200_000), P) < 0.005


def test_the_measure_sees_wrong_rules() -> None:
    assert total_variation(first_tokens(Ratio(Sampling(1.0)), 10_000), P) == pytest.approx(0.2, abs=0.015)
    assert total_variation(first_tokens(Independent(Sampling(1.0)), 10_000), P) == pytest.approx(0.045, abs=0.015)


ADAPTER = """
import numpy as np
from hyco_npu.decode.acceptance import Exact
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.tree import DraftTree

TREES = {}

def emit(p, q, rng):
    siblings = tuple(int(token) for token in np.argsort(-q)[:2])
    tree = TREES.setdefault(siblings, DraftTree((0, *siblings), (None, 0, 0), (0.0,) * 3, ("root", "slm", "slm")))
    found = Exact(Sampling(1.0)).accept(tree, np.log(np.stack([p] * 3)), rng)
    return tree.token_ids[found.rows[0]] if found.rows else found.bonus
"""


def test_the_case_lists_own_tool_passes_our_rule_and_fails_its_wrong_one(tmp_path: Path, shared_dir: Path) -> None:
    tools = shared_dir / "cases" / "tools"
    (tmp_path / "ours.py").write_text(ADAPTER)
    (tmp_path / "demo.py").write_text((tools / "demo.py").read_text())

    def run(function: str, draws: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tools / "tvtest.py"), function, str(draws)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    ours, wrong = run("ours:emit", 20_000), run("demo:bad", 5_000)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    assert float(ours.stdout.split()[1]) < 0.015  # 200,000 draws lie below .005: above, without the tool
    assert wrong.returncode == 1
    assert float(wrong.stdout.split()[1]) == pytest.approx(0.2, abs=0.02)


# --- several tokens over several rounds


@cache
def model(text: tuple[int, ...]) -> np.ndarray:
    """A scripted verifier: logits that depend on the whole text."""
    return np.random.default_rng([11, *text]).normal(size=VOCABULARY) * 1.5


@cache
def warped(text: tuple[int, ...], sampling: Sampling) -> np.ndarray:
    """What transformers samples the next token from."""
    scores = TemperatureLogitsWarper(sampling.temperature)(None, torch.tensor(model(text))[None])
    if sampling.top_k is not None:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p is not None:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return torch.softmax(scores, -1)[0].numpy()


def chain(text: tuple[int, ...]) -> DraftTree:
    """The likeliest token, three times over."""
    tokens = list(text)
    for _ in range(3):
        tokens.append(int(model(tuple(tokens)).argmax()))
    return DraftTree.chain(tokens[len(text) - 1 :], "mtp")


def bushy(text: tuple[int, ...]) -> DraftTree:
    """Two children at each of three depths, the less likely first."""
    tree, level = GrowingTree(text[-1]), [(0, text)]
    for _ in range(3):
        level = [
            (tree.add(node, token, -1.0, "slm"), (*path, token))
            for node, path in level
            for token in np.argsort(model(path))[-2:].tolist()
        ]
    return tree.trim(14, 3).tree


def everything(text: tuple[int, ...]) -> DraftTree:
    """All tokens as children of the root: the first draw always hits one."""
    return DraftTree((text[-1], 3, 1, 0, 2), (None, 0, 0, 0, 0), (0.0,) * 5, ("root", *["slm"] * 4))


def by_chance(text: tuple[int, ...]) -> DraftTree:
    """Another shape behind every text; some are a root alone."""
    rng = np.random.default_rng([5, *text])
    tree = GrowingTree(text[-1])
    nodes = int(rng.integers(0, 9))
    for _ in range(nodes):
        tree.add(int(rng.integers(len(tree))), int(rng.integers(VOCABULARY)), -1.0, "slm")
    return tree.trim(nodes, 9).tree


TREES = (chain, bushy, everything, by_chance)
SAMPLINGS = (Sampling(1.0), Sampling(0.7), Sampling(1.0, 3), Sampling(1.3, None, 0.8), Sampling(0.7, 3, 0.9))
PROMPT = (2,)


def joint_counts(rule: Any, plan: Callable[[tuple[int, ...]], DraftTree], texts: int, seed: int) -> np.ndarray:
    """Counts [4, 4, 4] of the first three tokens behind the prompt, emitted in as many rounds as it takes."""
    rng, counts = np.random.default_rng(seed), np.zeros((VOCABULARY,) * 3)

    @cache
    def verified(text: tuple[int, ...]) -> tuple[DraftTree, np.ndarray]:
        tree = plan(text)
        return tree, rows_of(tree, text, model)

    for _ in range(texts):
        text = PROMPT
        while len(text) < 4:
            tree, logits = verified(text)
            found = rule.accept(tree, logits, rng)
            text = (*text, *(tree.token_ids[row] for row in found.rows), found.bonus)
        counts[text[1:4]] += 1
    return counts


def p_value(counts: np.ndarray, sampling: Sampling) -> float:
    """Chi-square of the counts against the product of transformers' distributions; rare cells are put together."""
    texts = list(itertools.product(range(VOCABULARY), repeat=3))
    expected = np.array(
        [np.prod([warped((*PROMPT, *text[:i]), sampling)[text[i]] for i in range(3)]) for text in texts]
    )
    expected *= counts.sum()
    observed = np.array([counts[text] for text in texts])
    if observed[expected == 0].any():
        return 0.0
    rare = expected < 5
    grouped = [np.append(values[~rare], values[rare].sum()) for values in (observed, expected)]
    if grouped[1][-1] == 0:
        grouped = [values[:-1] for values in grouped]
    return float(scipy.stats.chisquare(*grouped).pvalue)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("plan", TREES)
def test_three_tokens_have_the_joint_distribution_of_plain_sampling(plan: Any, sampling: Sampling) -> None:
    seed = SAMPLINGS.index(sampling) * len(TREES) + TREES.index(plan)
    # 20 tests: by chance one in 500 runs of all of them would fall below
    assert p_value(joint_counts(Exact(sampling), plan, TEXTS, seed), sampling) > 1e-4


@pytest.mark.parametrize("wrong", [Ratio, Independent, StaleBonus])
def test_the_chi_square_sees_wrong_rules(wrong: Any) -> None:
    sampling = Sampling(1.0)
    assert p_value(joint_counts(wrong(sampling), bushy, TEXTS, 0), sampling) < 1e-9


def test_the_chi_square_sees_filters_that_are_left_out() -> None:
    assert p_value(joint_counts(Exact(Sampling(1.0)), bushy, TEXTS, 0), Sampling(0.7)) < 1e-9
    assert p_value(joint_counts(Exact(Sampling(1.0)), bushy, TEXTS, 0), Sampling(1.0, 3)) == 0


def test_epsilon_moves_what_is_no_child_to_the_likeliest_acceptable_one() -> None:
    # sample_first on one node: children 1 and 2 keep what they drew, and token 1 gets all that fell beside them
    counts = first_tokens(Epsilon(Sampling(1.0), 0.2), 4_000)
    assert scipy.stats.chisquare(counts[1:3], 4_000 * np.array([0.85, 0.15])).pvalue > 1e-4
    assert counts[[0, 3]].sum() == 0
    # nothing is acceptable at .31: plain sampling
    counts = first_tokens(Epsilon(Sampling(1.0), 0.31), 4_000)
    assert scipy.stats.chisquare(counts, 4_000 * P).pvalue > 1e-4


@pytest.mark.parametrize("order", ["sample_first", "max_p", "longest"])
def test_a_bonus_is_drawn_from_p_whatever_the_order(order: Any) -> None:
    rng, counts = np.random.default_rng(1), np.zeros(VOCABULARY)
    logits = np.log(np.stack([[0.01, 0.97, 0.01, 0.01], P]))
    rule, tree = Epsilon(Sampling(1.0), 0.9, order), DraftTree.chain([0, 1], "mtp")
    for _ in range(4_000):
        found = rule.accept(tree, logits, rng)
        assert found.rows == (1,)
        counts[found.bonus] += 1
    assert scipy.stats.chisquare(counts, 4_000 * P).pvalue > 1e-4
