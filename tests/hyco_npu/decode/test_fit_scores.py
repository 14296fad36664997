"""Recorded rounds are the drafters' own, cutting them again is GrowingTree's cut, and the search finds known optima."""

from __future__ import annotations

import itertools
import json
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp
from typer.testing import CliRunner

from hyco_npu.cli import app
from hyco_npu.decode.config import load_config, parse_config, read_toml
from hyco_npu.decode.fit_scores import (
    BIASES,
    FittedScores,
    Scores,
    fit,
    fitting_prompts,
    likeliest_temperatures,
    search,
    stack_rounds,
    toml_tables,
)
from hyco_npu.decode.models import ModelPaths, Models
from hyco_npu.decode.recording import (
    TEMPERATURES,
    Edges,
    RecordedRound,
    RecordingModels,
    log_norms,
    record_text,
)
from hyco_npu.decode.scores import SourceScore, best_candidates
from hyco_npu.decode.session import GenerationOptions, Session
from hyco_npu.decode.tree import GrowingTree
from hyco_npu.family import CALIBRATION_PROMPTS, HELD_OUT_PROMPTS
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.tree import DraftTree

COLUMNS = np.arange(40) * 2
"""Kept tokens of the synthetic drafters: the even ones."""
TOKENS = 16


def config_of(drafter: str = "hybrid", nodes: int = 8, keep_chain: bool = True, **others: Any) -> DecodeConfig:
    tree = {"nodes": nodes, "keep_chain": keep_chain}
    return parse_config({"name": "test", "drafter": drafter, "tree": tree, "mtp": {}, "slm": {}, **others}, "test")


class Drawn:
    """A round of random logits: which (node, source) rows were run, and the tree that GrowingTree makes of them."""

    def __init__(self, rng: np.random.Generator, count: int = 3, edge_score: float = 0.0) -> None:
        self.edge_score = edge_score
        self.rows: list[tuple[tuple[int, ...], str, np.ndarray]] = []
        paths: list[tuple[int, ...]] = [()]
        for place in range(5):
            path = paths[int(rng.integers(len(paths)))]
            for source in ("mtp", "slm") if place % 2 else ("slm",):
                # few different logits: equal scores are then frequent
                logits = rng.integers(-4, 5, len(COLUMNS)).astype(np.float32) / 2
                self.rows.append((path, source, logits))
                paths += [(*path, t) for (t, _) in best_candidates(logits[None], COLUMNS, count, SourceScore())[0]]
        self.count = count

    def grown(self, scores: Scores) -> tuple[GrowingTree, dict[tuple[int, ...], int]]:
        tree, nodes = GrowingTree(1), {(): 0}
        for path, source, logits in self.rows:
            for token, value in best_candidates(logits[None], COLUMNS, self.count, scores[source])[0]:
                extra = self.edge_score if source == "slm" else 0.0
                nodes[(*path, token)] = tree.add(nodes[path], token, value + extra, source)
        return tree, nodes

    def recorded(self, temperatures: tuple[float, ...], always: tuple[int, ...]) -> RecordedRound:
        tree, nodes = self.grown({"mtp": SourceScore(), "slm": SourceScore()})
        whole = tree.trim(len(tree), 99).tree
        edges = {}
        for name in ("mtp", "slm"):
            found = Edges(
                np.full(whole.rows, np.nan, np.float32), np.zeros((whole.rows, len(temperatures)), np.float32)
            )
            for path, source, logits in self.rows:
                if source == name:
                    for token, _ in best_candidates(logits[None], COLUMNS, self.count, SourceScore())[0]:
                        row = nodes[(*path, token)]
                        found.logits[row] = logits[token // 2]
                        found.norms[row] = log_norms(logits, temperatures)
            edges[name] = found
        return RecordedRound(whole, always, (), edges, {})


@pytest.mark.parametrize("nodes", [2, 5, 9, 40])
@pytest.mark.parametrize("drafter", ["hybrid", "beam"])
def test_the_cut_is_that_of_the_growing_tree(nodes: int, drafter: str) -> None:
    config = config_of(drafter, nodes)
    temperatures = (*TEMPERATURES,)
    rng = np.random.default_rng(nodes)
    drawn = [Drawn(rng, edge_score=float(np.log(0.9)) if drafter == "beam" else 0.0) for _ in range(12)]
    always = [()] * 6 + [(1, 2, 3)] * 6
    stack = stack_rounds([[d.recorded(temperatures, a) for d, a in zip(drawn, always, strict=True)]], config)
    for temperature, bias in ((1.0, 0.0), (0.4, -1.5), (2.5, 0.75), (0.5, -4.0)):
        scores = {"mtp": SourceScore(1.25), "slm": SourceScore(temperature, bias)}
        for one, first, kept in zip(drawn, always, stack.kept(scores), strict=True):
            tree, _ = one.grown(scores)
            expected = {*tree.trim(nodes, 99, first).nodes}
            assert {*np.flatnonzero(kept).tolist(), 0} == expected


def test_norms_are_log_sum_exps() -> None:
    logits = np.random.default_rng(0).normal(0, 9, 500).astype(np.float32)
    expected = [logsumexp(logits.astype(np.float64) / temperature) for temperature in TEMPERATURES]
    np.testing.assert_allclose(log_norms(logits, TEMPERATURES), expected, rtol=1e-6)


def judged_round(rows: dict[str, np.ndarray], children: dict[str, list[int]], true_token: int) -> RecordedRound:
    """A root with children, of which the verifier's text takes one."""
    tree = GrowingTree(1)
    for source, tokens in children.items():
        tree.add_all(0, [(token, -1.0) for token in tokens], source)
    whole = tree.trim(len(tree), 9).tree
    edges, truth = {}, {}
    for source, logits in rows.items():
        found = Edges(np.full(whole.rows, np.nan, np.float32), np.zeros((whole.rows, len(TEMPERATURES)), np.float32))
        norms = log_norms(logits, TEMPERATURES)
        for token in children[source]:
            row = whole.child(0, token)
            assert row is not None
            found.logits[row], found.norms[row] = logits[token // 2], norms
        edges[source], truth[source] = found, [(logits[true_token // 2], norms)]
    row = whole.child(0, true_token)
    return RecordedRound(whole, (), () if row is None else (row,), edges, truth)


def overconfident_head(rng: np.random.Generator, rounds: int) -> list[RecordedRound]:
    """The SLM, in doubt, is right; the head, sure of itself, is wrong: the cut has room for one."""
    found = []
    for _ in range(rounds):
        head, slm = (rng.normal(0, 0.3, len(COLUMNS)).astype(np.float32) for _ in range(2))
        head[3] += 6.0
        slm[7] += 2.5 + rng.normal(0, 0.1)
        found.append(judged_round({"mtp": head, "slm": slm}, {"mtp": [6], "slm": [14]}, true_token=14))
    return found


def far(scores: Scores) -> float:
    return sum(abs(np.log(score.temperature)) + abs(score.bias) for score in scores.values())


def test_the_search_finds_the_best_of_the_grid_nearest_to_doing_nothing() -> None:
    rounds, config = overconfident_head(np.random.default_rng(1), 20), config_of(nodes=1)
    stack = stack_rounds([rounds], config)
    unfitted = {"mtp": SourceScore(), "slm": SourceScore()}
    assert stack.accepted(unfitted).sum() == 0
    best: tuple[float, float] = (0.0, 0.0)
    for mtp, slm, bias in itertools.product(TEMPERATURES, TEMPERATURES, BIASES):
        scores = {"mtp": SourceScore(mtp), "slm": SourceScore(slm, bias)}
        best = min(best, (-float(stack.accepted(scores).sum()), float(far(scores))))
    found = search(config, [rounds])
    assert best[0] == -20
    assert stack.accepted(found).sum() == 20
    assert found["mtp"].bias == 0
    # one coordinate at a time may end a step of the grid beside the nearest optimum
    assert far(found) <= best[1] + 0.5


def test_where_nothing_helps_scores_stay_as_they_would_be_unfitted() -> None:
    rng = np.random.default_rng(2)
    rows = {source: rng.normal(size=len(COLUMNS)).astype(np.float32) for source in ("mtp", "slm")}
    rounds = [[judged_round(rows, {"mtp": [6], "slm": [14]}, true_token=14)] for _ in range(4)]
    fitted = fit(config_of(nodes=9), rounds, seed=0)
    assert fitted.scores == {"mtp": SourceScore(), "slm": SourceScore()}
    assert (fitted.accepted_before, fitted.accepted_after, fitted.helped) == (1.0, 1.0, False)
    assert "Fitting did not help as far as these prompts can tell" in fitted.verdict


def test_the_likeliest_temperature_is_the_one_that_tokens_were_drawn_at() -> None:
    rng, drawn_at, rounds, rows, tokens = np.random.default_rng(3), 2.0, [], [], []
    for _ in range(600):
        logits = rng.normal(0, 3, len(COLUMNS)).astype(np.float32)
        column = int(rng.choice(len(COLUMNS), p=np.exp(log_softmax(logits.astype(np.float64) / drawn_at))))
        rounds.append(judged_round({"slm": logits}, {"slm": [0]}, true_token=2 * column))
        rows.append(logits)
        tokens.append(column)
    losses = [
        -np.mean([log_softmax(row / t)[token] for row, token in zip(rows, tokens, strict=True)]) for t in TEMPERATURES
    ]
    assert likeliest_temperatures([rounds], TEMPERATURES) == {"slm": TEMPERATURES[int(np.argmin(losses))]}
    assert TEMPERATURES[int(np.argmin(losses))] == drawn_at


def test_a_fit_that_helps_says_so_and_its_tables_are_a_configurations(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    fitted = fit(config_of(nodes=1), [overconfident_head(rng, 3) for _ in range(8)], seed=0)
    assert (fitted.accepted_before, fitted.accepted_after, fitted.rounds, fitted.prompts) == (0.0, 1.0, 24, 8)
    assert (fitted.gain, fitted.gain_ci95) == (1.0, (1.0, 1.0))
    assert (fitted.crossed_gain, fitted.helped) == (1.0, True)
    assert "Fitting helped: +1.000 (+1.000 to +1.000)" in fitted.verdict
    assert_appended(tmp_path, toml_tables(load_config("hyco"), fitted), fitted.scores)


def test_scores_that_do_worse_on_other_prompts_are_called_harmful() -> None:
    """The halves contradict each other: what is right for one half is wrong for the other."""
    rng = np.random.default_rng(5)
    mine = overconfident_head(rng, 12)
    other = [replace(one, true_rows=(3 - one.true_rows[0],)) for one in overconfident_head(rng, 12)]
    texts = [[one] for pair in zip(mine, other, strict=True) for one in pair]
    fitted = fit(config_of(nodes=1), texts, seed=0)
    assert not fitted.helped
    assert fitted.crossed_gain is not None
    assert fitted.crossed_gain < 0


def test_one_prompt_cannot_tell() -> None:
    fitted = fit(config_of(nodes=1), [overconfident_head(np.random.default_rng(6), 5)], seed=0)
    assert (fitted.crossed_gain, fitted.helped) == (None, False)
    assert "One prompt with rounds cannot tell" in fitted.verdict


def test_nothing_recorded_is_an_error() -> None:
    with pytest.raises(HycoError, match="no round drafted with head or SLM on 2 prompts"):
        fit(config_of(), [[], []], seed=0)


def assert_appended(folder: Path, tables: str, scores: Scores) -> None:
    """Behind the packaged configuration the tables are read as they were written."""
    file = folder / "mine.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in read_toml("hyco").items() if not isinstance(value, dict)]
    file.write_text("\n".join([*lines, "[mtp]", "[slm]", tables]))
    config = load_config(str(file))
    assert {source: config.scores[source].score for source in ("mtp", "slm")} == scores


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return fitting_prompts(Models(ModelPaths()).tokenizer, CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, 2)


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tuple(tree.token_ids[row] for row in tree.path(place)) for place in range(1, tree.rows)}


SCORES = {"mtp": {"temperature": 1.37, "bias": -0.25}, "slm": {"temperature": 0.63, "bias": -0.5}}


@pytest.mark.parametrize("name", ["hyco", "specedge", "hyco-2p", "cloud-mtp"])
def test_recorded_rounds_are_those_that_were_sent(name: str, texts: list[list[int]]) -> None:
    values = read_toml(name)
    config = parse_config({**values, "tree": {"nodes": 9, "keep_chain": False}, "scores": SCORES}, name)
    models = RecordingModels(ModelPaths())
    rounds = record_text(models, config, texts[0], TOKENS)
    stack = stack_rounds([rounds], config)
    assert len(rounds) == len(models.newest.sent) > 2
    kept = stack.kept({source: config.score_of(source) for source in stack.logits})  # type: ignore[arg-type]
    for one, sent, rows in zip(rounds, models.newest.sent, kept, strict=True):
        ours = {tuple(one.tree.token_ids[at] for at in one.tree.path(row)) for row in np.flatnonzero(rows)}
        assert ours == paths_of(sent)


def test_accepted_tokens_are_those_of_decoding(texts: list[list[int]]) -> None:
    """Greedy decoding under the exact rule, counted from the replies of an ordinary session."""
    config = load_config("hyco-exact")
    rounds = list(Session(Models(ModelPaths()), config, GenerationOptions(TOKENS)).generate(texts[0]))[1:]
    drafted = [one for one in rounds if one.tree.nodes]
    recorded = record_text(RecordingModels(ModelPaths()), config, texts[0], TOKENS)
    stack = stack_rounds([recorded], config)
    accepted = stack.accepted({"mtp": SourceScore(), "slm": SourceScore()})
    assert accepted.tolist() == [len(one.reply.accepted) for one in drafted]
    assert sum(accepted) > 0


def test_the_command_writes_tables(tmp_path: Path) -> None:
    out = tmp_path / "scores.toml"
    arguments = ["fit-scores", "--limit", "1", "--max-new-tokens", "8", "--out", str(out), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["out"] == str(out)
    assert found["rounds"] >= 1
    assert found["accepted_after"] >= found["accepted_before"] > 0
    assert tomllib.loads(out.read_text()) == {"scores": found["scores"]}
    assert_appended(tmp_path, out.read_text(), {name: SourceScore(**score) for name, score in found["scores"].items()})
    again = CliRunner().invoke(app, arguments)
    assert (again.exit_code, json.loads(again.stdout)["error"].split(": ")[0]) == (2, "--out")


def test_held_out_prompts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"24 of its prompts .* are held-out ones"):
        fitting_prompts(Models(ModelPaths()).tokenizer, HELD_OUT_PROMPTS, HELD_OUT_PROMPTS, None)


def test_a_configuration_without_drafter_has_nothing_to_fit(tmp_path: Path) -> None:
    arguments = ["fit-scores", "--config", "plain", "--limit", "1", "--max-new-tokens", "2", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "scores.toml")])
    assert result.exit_code == 1
    assert "plain: no round drafted with head or SLM" in json.loads(result.stdout)["error"]


def test_results_are_plain_numbers() -> None:
    fitted = fit(config_of(nodes=1), [overconfident_head(np.random.default_rng(7), 2)] * 2, seed=0)
    assert isinstance(fitted, FittedScores)
    json.dumps([fitted.gain, fitted.gain_ci95, fitted.accepted_before, fitted.accepted_after, fitted.rounds])
