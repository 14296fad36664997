"""The rules against brute force on random trees, and what each must leave unchanged; test_exactness.py has the rest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from hyco_npu.decode.acceptance import Accepted, Epsilon, Exact, Typical, entropy, rule_of
from hyco_npu.decode.config import AcceptanceSettings
from hyco_npu.decode.errors import DecodeError, LogitsError
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.tree import DraftTree, GrowingTree
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 6
ORDERS = ("sample_first", "max_p", "longest")
PLAIN = Sampling(1.0)


def random_tree(rng: np.random.Generator, nodes: int) -> DraftTree:
    """Tokens, shape and sources by chance; some rows have two sources."""
    tree = GrowingTree(int(rng.integers(VOCABULARY)))
    for _ in range(nodes):
        tree.add(int(rng.integers(len(tree))), int(rng.integers(VOCABULARY)), -1.0, str(rng.choice(["mtp", "slm"])))
    return tree.trim(nodes, nodes).tree


def random_case(seed: int) -> tuple[DraftTree, np.ndarray, np.ndarray]:
    """A tree, logits of its rows, and their plain softmax by scipy."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, int(rng.integers(1, 14)))
    logits = rng.normal(size=(tree.rows, VOCABULARY)).astype(np.float32) * 2
    return tree, logits, scipy.special.softmax(logits.astype(np.float64), axis=1)


def accept(rule: Any, tree: DraftTree, logits: np.ndarray, seed: int = 0) -> Accepted:
    return rule.accept(tree, logits, np.random.default_rng(seed))


def tree_of(*rows: tuple[int, int, str]) -> DraftTree:
    """Root token 0, then (token, parent, source) each."""
    tokens, parents, sources = zip(*rows, strict=True)
    return DraftTree((0, *tokens), (None, *parents), (0.0,) * (len(rows) + 1), ("root", *sources))


def log_rows(*rows: list[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(rows))


# --- by hand: one node, p = [.5, .3, .15, .05]; at temperature 0 the draw is token 0

NODE = [0.5, 0.3, 0.15, 0.05]
CHILDREN = tree_of((3, 0, "slm"), (2, 0, "mtp"), (1, 0, "slm"))


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"epsilon": 0.005}, (3,)),
        ({"epsilon": 0.3 - 1e-9}, (3,)),
        ({"epsilon": 0.31}, ()),
        ({"epsilon": 0.005, "nodes": "chain"}, (2,)),
        ({"epsilon": 0.16, "nodes": "chain"}, ()),
        ({"epsilon": 0.005, "order": "max_p"}, (3,)),
        ({"epsilon": 0.005, "order": "longest"}, (3,)),
    ],
)
def test_on_raw_probabilities_the_rule_acts_at_temperature_0_too(
    options: dict[str, Any], rows: tuple[int, ...]
) -> None:
    rule = Epsilon(Sampling(), distribution="raw", **options)
    logits = log_rows(NODE, *[[0.0, 0, 0, 1]] * 3)
    # behind an accepted row the greedy token is 3, behind the root it is 0
    assert accept(rule, CHILDREN, logits) == Accepted(rows, 3 if rows else 0)


def test_a_source_that_only_contains_the_heads_name_is_no_chain() -> None:
    tree = tree_of((1, 0, "mtp2"), (2, 0, "slm+mtp"))
    rule = Epsilon(Sampling(), 0.005, "max_p", "raw", "chain")
    assert accept(rule, tree, log_rows(NODE, NODE, NODE)).rows == (2,)


def test_a_probability_equal_to_epsilon_is_enough() -> None:
    tree = tree_of((1, 0, "mtp"))
    half = np.zeros((2, 2))
    # the draw is token 0, the lower of the two
    assert accept(Epsilon(Sampling(), 0.5, "max_p", "raw"), tree, half).rows == (1,)
    assert accept(Epsilon(Sampling(), np.nextafter(0.5, 1), "max_p", "raw"), tree, half).rows == ()


def test_max_p_takes_the_likeliest_child_and_longest_the_longest_path() -> None:
    tree = tree_of((0, 0, "slm"), (1, 0, "mtp"), (2, 2, "slm"))
    logits = log_rows([0.6, 0.3, 0.1, 0.0], [0.0, 0, 0, 1], [0.1, 0.1, 0.2, 0.6], [0.0, 0, 0, 1])
    assert accept(Epsilon(PLAIN, 0.15, "max_p"), tree, logits) == Accepted((1,), 3)
    assert accept(Epsilon(PLAIN, 0.15, "longest"), tree, logits) == Accepted((2, 3), 3)
    # the second step is not acceptable any more: equally long paths, and the likelier wins
    assert accept(Epsilon(PLAIN, 0.25, "longest"), tree, logits) == Accepted((1,), 3)


def test_typical_compares_with_the_smaller_of_its_two_bounds() -> None:
    tree = tree_of((1, 0, "mtp"))
    bound = math.exp(-scipy.stats.entropy(NODE))
    logits = log_rows(NODE, [0.0, 0, 0, 1])
    # the two bounds just below and just above p(1) = .3, the other one far above
    for epsilon, delta, taken in [
        (0.2999, 100.0, True),
        (0.3001, 100.0, False),
        (100.0, 0.2999 / bound, True),
        (100.0, 0.3001 / bound, False),
    ]:
        found = accept(Typical(PLAIN, epsilon, delta), tree, logits)
        drawn = Exact(PLAIN).accept(DraftTree.root_only(0), logits[:1], np.random.default_rng(0)).bonus
        assert found == (Accepted((1,), 3) if taken else Accepted((), drawn))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda values: sum(values) > 1e-6))
def test_entropy_equals_scipys(values: list[float]) -> None:
    p = np.array(values) / sum(values)
    assert entropy(p) == pytest.approx(scipy.stats.entropy(p), abs=1e-12)


# --- against brute force over all paths of random trees


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """Every path from the root, the empty one too, by walking parents."""
    paths: list[tuple[int, ...]] = [()]
    for row in range(1, tree.rows):
        path, at = [], row
        while at != 0:
            path.insert(0, at)
            at = tree.parents[at]
        paths.append(tuple(path))
    return paths


def longest(tree: DraftTree, p: np.ndarray, acceptable: Callable[[int], bool]) -> tuple[int, ...]:
    """The longest path whose every row is acceptable; of several, the likeliest."""
    allowed = [path for path in paths_of(tree) if all(map(acceptable, path))]
    return max(
        allowed, key=lambda path: (len(path), sum(math.log(p[tree.parents[r], tree.token_ids[r]]) for r in path))
    )


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), epsilon=st.sampled_from([1e-3, 0.05, 0.15, 0.4]))
def test_longest_is_the_longest_acceptable_path(seed: int, epsilon: float) -> None:
    tree, logits, p = random_case(seed)
    expected = longest(tree, p, lambda row: p[tree.parents[row], tree.token_ids[row]] >= epsilon)
    found = accept(Epsilon(PLAIN, epsilon, "longest"), tree, logits, seed)
    # behind it an exact draw may hit a child that the rule refused, and the rule goes on from there
    assert found.rows[: len(expected)] == expected


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), epsilon=st.sampled_from([0.02, 0.09, 0.3]), delta=st.sampled_from([0.1, 0.3, 2]))
def test_typical_is_the_longest_path_above_medusas_bound(seed: int, epsilon: float, delta: float) -> None:
    tree, logits, p = random_case(seed)
    bounds = [min(epsilon, delta * math.exp(-scipy.stats.entropy(row))) for row in p]
    expected = longest(tree, p, lambda row: p[tree.parents[row], tree.token_ids[row]] > bounds[tree.parents[row]])
    found = accept(Typical(PLAIN, epsilon, delta), tree, logits, seed)
    assert found.rows == expected
    end = expected[-1] if expected else 0
    assert found.bonus == accept(Exact(PLAIN), DraftTree.root_only(0), logits[end : end + 1], seed).bonus


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), epsilon=st.sampled_from([1e-3, 0.05, 0.15, 0.4]), chain=st.booleans())
def test_max_p_descends_through_the_likeliest_acceptable_children(seed: int, epsilon: float, chain: bool) -> None:
    tree, logits, p = random_case(seed)
    expected, at = [], 0
    while True:
        behind = [row for row in range(tree.rows) if tree.parents[row] == at]
        behind = [row for row in behind if p[at, tree.token_ids[row]] >= epsilon]
        behind = [row for row in behind if not chain or "mtp" in tree.sources[row]]
        if not behind:
            break
        at = max(behind, key=lambda row: p[tree.parents[row], tree.token_ids[row]])
        expected.append(at)
    rule = Epsilon(PLAIN, epsilon, "max_p", nodes="chain" if chain else "all")
    assert accept(rule, tree, logits, seed).rows[: len(expected)] == tuple(expected)


# --- what must not change


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), order=st.sampled_from(ORDERS), chain=st.booleans())
def test_epsilon_above_1_is_exact(seed: int, order: Any, chain: bool) -> None:
    tree, logits, _ = random_case(seed)
    sampling = Sampling(0.8, 4, 0.9)
    for distribution in ("raw", "processed"):
        rule = Epsilon(sampling, 1.0001, order, distribution, "chain" if chain else "all")
        assert accept(rule, tree, logits, seed) == accept(Exact(sampling), tree, logits, seed)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ties=st.booleans())
def test_at_temperature_0_every_rule_on_processed_probabilities_is_greedy(seed: int, ties: bool) -> None:
    tree, logits, _ = random_case(seed)
    if ties:
        logits = logits.round()
    expected, at = [], 0
    while True:
        best = int(np.flatnonzero(logits[at] == logits[at].max())[0])
        behind = [row for row in range(tree.rows) if tree.parents[row] == at and tree.token_ids[row] == best]
        if not behind:
            break
        at = behind[0]
        expected.append(at)
    rules = [Exact(Sampling()), Typical(Sampling()), Typical(Sampling(), 5.0, 5.0)]
    rules += [
        Epsilon(Sampling(), e, order, nodes=n) for e in (1e-9, 0.005, 1.0) for order in ORDERS for n in ("all", "chain")
    ]
    for rule in rules:
        assert accept(rule, tree, logits, seed) == Accepted(tuple(expected), best), rule


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_where_the_head_drafted_nothing_the_chain_rule_is_exact(seed: int) -> None:
    tree, logits, _ = random_case(seed)
    slm = DraftTree(tree.token_ids, tree.parents, tree.scores, ("root", *["slm"] * tree.nodes))
    for order in ORDERS:
        rule = Epsilon(PLAIN, 1e-6, order, nodes="chain")
        assert accept(rule, slm, logits, seed) == accept(Exact(PLAIN), slm, logits, seed)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_answer_is_a_path_from_the_root(seed: int) -> None:
    tree, logits, _ = random_case(seed)
    rules = [Exact(PLAIN), Typical(PLAIN), *[Epsilon(PLAIN, 0.05, order) for order in ORDERS]]
    for rule in rules:
        assert accept(rule, tree, logits, seed).rows in paths_of(tree)


# --- errors and effort


@pytest.mark.parametrize("epsilon", [0.0, -0.005, float("nan")])
def test_an_epsilon_that_is_not_above_0_is_a_usage_error(epsilon: float) -> None:
    with pytest.raises(UsageError, match=f"epsilon {epsilon}"):
        Epsilon(PLAIN, epsilon)
    with pytest.raises(UsageError, match="epsilon"):
        Typical(PLAIN, epsilon, 0.3)
    with pytest.raises(UsageError, match="delta"):
        Typical(PLAIN, 0.09, epsilon)


@pytest.mark.parametrize("sampling", [Sampling(), PLAIN, Sampling(0.7, 2, 0.9)])
@pytest.mark.parametrize("bad", [[0.0, np.nan, 0.0], [-np.inf] * 3])
def test_logits_that_are_not_numbers_name_the_row(sampling: Sampling, bad: list[float]) -> None:
    tree = tree_of((1, 0, "mtp"), (2, 1, "mtp"), (0, 0, "slm"))
    logits = np.array([[-90.0, 0, -90], [-90.0, -90, 0], bad, [0.0, 0, 0]])
    for rule in (Exact(sampling), Epsilon(sampling), Epsilon(sampling, order="longest"), Typical(sampling)):
        with pytest.raises(LogitsError, match="row 2 of the tree, token 2: the largest of 3 logits"):
            accept(rule, tree, logits)
    # row 3 is visited by nobody: what stands there does not matter
    logits[2], logits[3] = [0.0, 0, 90], bad
    assert accept(Exact(sampling), tree, logits) == Accepted((1, 2), 2)


@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (4,)])
def test_logits_must_be_one_row_for_each_of_the_tree(shape: tuple[int, ...]) -> None:
    with pytest.raises(DecodeError, match="2 rows was verified with logits of shape"):
        accept(Exact(Sampling()), DraftTree.chain([0, 1], "mtp"), np.zeros(shape))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("order", [None, *ORDERS])
def test_a_distribution_is_made_of_visited_rows_only_and_once(
    monkeypatch: pytest.MonkeyPatch, seed: int, order: Any
) -> None:
    tree, logits, p = random_case(seed)
    made: list[int] = []
    genuine = Sampling.distribution

    def counted(sampling: Sampling, row: np.ndarray) -> np.ndarray:
        made.append(int(np.flatnonzero((logits == row).all(axis=1))[0]))
        return genuine(sampling, row)

    monkeypatch.setattr(Sampling, "distribution", counted)
    rule = Exact(PLAIN) if order is None else Epsilon(PLAIN, 0.2, order)
    visited = {0, *accept(rule, tree, logits, seed).rows}
    if order == "longest":
        reachable = [path for path in paths_of(tree) if all(p[tree.parents[r], tree.token_ids[r]] >= 0.2 for r in path)]
        visited |= {row for path in reachable for row in path}
    assert len(made) == len(set(made))
    assert set(made) <= visited


def test_greedy_acceptance_of_a_whole_vocabulary_makes_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(sampling: Sampling, row: np.ndarray) -> np.ndarray:
        raise AssertionError("at temperature 0 the largest logit is enough")

    monkeypatch.setattr(Sampling, "distribution", refused)
    logits = np.zeros((3, 262_144), np.float32)
    logits[[0, 1, 2], [200_000, 7, 262_143]] = 1.0
    assert accept(Exact(Sampling()), DraftTree.chain([0, 200_000, 8], "mtp"), logits) == Accepted((1,), 7)


# --- the configuration's rule


def test_a_configuration_names_its_rule_with_its_options() -> None:
    sampling = Sampling(0.7, 40, 0.9)
    assert rule_of(AcceptanceSettings(), sampling) == Exact(sampling)
    chosen = AcceptanceSettings(rule="epsilon", epsilon=0.01, order="longest", distribution="raw", nodes="chain")
    assert rule_of(chosen, sampling) == Epsilon(sampling, 0.01, "longest", "raw", "chain")
    assert rule_of(AcceptanceSettings(rule="epsilon"), sampling) == Epsilon(sampling, 0.005, "sample_first")
    typical = AcceptanceSettings(rule="typical", epsilon=0.09, delta=0.2)
    assert rule_of(typical, sampling) == Typical(sampling, 0.09, 0.2)
