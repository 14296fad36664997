"""Fits temperature and bias of the drafters' scores on recorded rounds: no model runs, trees are only cut again.

A round accepts, greedily, the nodes of the verifier's own continuation that its cut keeps. The search raises their
number; it starts from the temperatures at which each source gives the true tokens the most probability. Where a drafter
makes several passes, scores also decide which nodes it runs: the recorded trees then stand for those of other scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from calibration.prompts import encode_prompt, read_prompts
from hyco_npu.decode.drafters.beam import EDGE_SCORE
from hyco_npu.decode.recording import recorded_temperatures
from hyco_npu.decode.scores import SourceScore
from hyco_npu.family.evaluate import Acceptance, acceptance_lost
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.recording import RecordedRound

Scores = dict[str, SourceScore]
BIASES = tuple(step / 4 for step in range(-16, 5))
SOURCES: tuple[Literal["mtp", "slm"], ...] = ("mtp", "slm")
_FREE_BIAS = "slm"
"""The source whose bias is searched; the head's is 0, for only differences rank drafts of both."""


@dataclass(frozen=True)
class FittedScores:
    """What the search found, in accepted draft tokens per recorded round, the bonus left out.

    `gain` is after minus before with its paired 95 % interval over prompts; the scores were chosen on these prompts, so
    it flatters. `crossed_gain` does not: each half of the prompts is cut with scores that were fitted on the other half
    (None for a single prompt). `helped`: its interval lies above 0.
    """

    scores: Scores
    accepted_before: float
    accepted_after: float
    gain: float
    gain_ci95: tuple[float, float]
    crossed_gain: float | None
    crossed_gain_ci95: tuple[float, float] | None
    rounds: int
    prompts: int
    helped: bool
    verdict: str


@dataclass(frozen=True, eq=False)
class RoundStack:
    """Rounds side by side, padded to the most rows: arrays [rounds, rows], `norms` [rounds, rows, temperatures].

    parents and depths int64; kept_first, drafted and true bool: rows always kept, rows that are drafted nodes, rows on
    the verifier's path. `prompts` int64 [rounds]. `nodes`: size of the cut. `edge_score` is added to the SLM's edges.
    """

    temperatures: tuple[float, ...]
    parents: np.ndarray
    depths: np.ndarray
    kept_first: np.ndarray
    drafted: np.ndarray
    true: np.ndarray
    logits: Mapping[str, np.ndarray]
    norms: Mapping[str, np.ndarray]
    prompts: np.ndarray
    nodes: int
    edge_score: float

    def scores(self, by_source: Scores) -> np.ndarray:
        """Cumulative log-probability float64 [rounds, rows], as GrowingTree.scores; rows of no node have -inf."""
        edges = np.full(self.parents.shape, -np.inf)
        for source, score in by_source.items():
            norms = self.norms[source][..., self.temperatures.index(score.temperature)]
            values = self.logits[source] / np.float32(score.temperature) - norms + np.float32(score.bias)
            own = np.minimum(values.astype(np.float64), 0.0) + (self.edge_score if source == "slm" else 0.0)
            edges = np.fmax(edges, own)
        cumulative = np.where(self.drafted, edges, 0.0)
        for depth in range(2, int(self.depths.max(initial=0)) + 1):
            above = np.take_along_axis(cumulative, self.parents, axis=1)
            cumulative = np.where(self.depths == depth, above + edges, cumulative)
        return np.where(self.drafted, cumulative, -np.inf)

    def kept(self, by_source: Scores) -> np.ndarray:
        """Which nodes the cut keeps, bool [rounds, rows]: GrowingTree.trim of every round."""
        ranking = np.where(self.kept_first, np.inf, self.scores(by_source))
        # from best to worst; ties go to the ancestor, then to the older node
        rows = np.broadcast_to(np.arange(ranking.shape[1]), ranking.shape)
        order = np.lexsort((rows, self.depths, -ranking), axis=1)[:, : self.nodes]
        kept = np.zeros(ranking.shape, bool)
        np.put_along_axis(kept, order, True, axis=1)
        found: np.ndarray = kept & self.drafted
        return found

    def accepted(self, by_source: Scores) -> np.ndarray:
        """Accepted tokens of every round, int64 [rounds]; a cut holds a node's ancestors too."""
        counts: np.ndarray = (self.kept(by_source) & self.true).sum(axis=1)
        return counts


def fitting_prompts(
    tokenizer: PreTrainedTokenizerBase, path: Path, held_out: Path, limit: int | None
) -> list[list[int]]:
    """Token ids of the first `limit` prompts of a file. Raises UsageError for a prompt that is also in `held_out`."""
    prompts = read_prompts(path)
    reserved = {prompt.turns[0] for prompt in read_prompts(held_out)}
    shared = [prompt.id for prompt in prompts if prompt.turns[0] in reserved]
    if shared:
        raise UsageError(
            f"--prompts {path}: {len(shared)} of its prompts ({shared[0]}, ...) are held-out ones, on which results "
            "are reported; fit on others"
        )
    return [encode_prompt(tokenizer, prompt) for prompt in prompts[:limit]]


def fit(config: DecodeConfig, recorded: Sequence[Sequence[RecordedRound]], seed: int) -> FittedScores:
    """Fit on the rounds of each prompt. `seed` is the bootstrap's alone: the search leaves nothing to chance.

    Raises HycoError where no round drafted with head or SLM.
    """
    stack = stack_rounds(recorded, config)
    found = search(config, recorded)
    before, after = (_by_prompt(stack, scores, len(recorded)) for scores in (_scores_in(config, stack), found))
    gain, interval = _difference(after, before, seed)
    crossed = _crossed(config, recorded)
    crossed_gain = None if crossed is None else _difference(crossed, before, seed)
    helped = crossed_gain is not None and crossed_gain[1][0] > 0
    rounds = len(stack.prompts)
    return FittedScores(
        scores=found,
        accepted_before=float(before.accepted.sum() / rounds),
        accepted_after=float(after.accepted.sum() / rounds),
        gain=gain,
        gain_ci95=interval,
        crossed_gain=None if crossed_gain is None else crossed_gain[0],
        crossed_gain_ci95=None if crossed_gain is None else crossed_gain[1],
        rounds=rounds,
        prompts=len(recorded),
        helped=helped,
        verdict=_verdict(gain, interval, crossed_gain),
    )


def search(config: DecodeConfig, recorded: Sequence[Sequence[RecordedRound]]) -> Scores:
    """The scores on the grid under which most tokens are accepted, one coordinate at a time from three starts.

    Starts: the configuration's own, 1 and 0, the likeliest temperatures. Ties go to the values nearest 1 and 0.
    """
    stack = stack_rounds(recorded, config)
    current = _scores_in(config, stack)
    known: dict[tuple[tuple[str, float, float], ...], int] = {}

    def rank(scores: Scores) -> tuple[float, float]:
        key = tuple((source, score.temperature, score.bias) for source, score in scores.items())
        if key not in known:
            known[key] = int(stack.accepted(scores).sum())
        far = sum(abs(math.log(score.temperature)) + abs(score.bias) for score in scores.values())
        return -known[key], far

    likeliest = likeliest_temperatures(recorded, stack.temperatures)
    starts = [
        {source: SourceScore() for source in current},
        {source: SourceScore(likeliest[source]) for source in current},
        {s: SourceScore(score.temperature, score.bias if s == _FREE_BIAS else 0.0) for s, score in current.items()},
    ]
    return min([*(_climb(start, stack.temperatures, rank) for start in starts), current], key=rank)


def likeliest_temperatures(
    recorded: Sequence[Sequence[RecordedRound]], temperatures: Sequence[float]
) -> dict[str, float]:
    """By source, the temperature at which the true tokens on the verifier's path have the least mean NLL."""
    sums: dict[str, np.ndarray] = {}
    for one in (one for rounds in recorded for one in rounds):
        for source, rows in one.truth.items():
            total = sums.setdefault(source, np.zeros(len(temperatures)))
            for logit, norms in rows:
                total += norms - float(logit) / np.array(temperatures)
    return {source: temperatures[int(total.argmin())] if total.any() else 1.0 for source, total in sums.items()}


def stack_rounds(recorded: Sequence[Sequence[RecordedRound]], config: DecodeConfig) -> RoundStack:
    """All rounds side by side. Raises HycoError where there is none."""
    flat = [(number, one) for number, rounds in enumerate(recorded) for one in rounds]
    if not flat:
        raise HycoError(
            f"{config.name}: no round drafted with head or SLM on {len(recorded)} prompts; there is nothing to fit"
        )
    temperatures = recorded_temperatures(config)
    rounds = [one for _, one in flat]
    width = max(one.tree.rows for one in rounds)
    sources = sorted({source for one in rounds for source in one.edges})
    logits = {source: np.full((len(flat), width), np.nan, np.float32) for source in sources}
    norms = {source: np.zeros((len(flat), width, len(temperatures)), np.float32) for source in sources}
    for place, one in enumerate(rounds):
        for source, edges in one.edges.items():
            logits[source][place, : one.tree.rows] = edges.logits
            norms[source][place, : one.tree.rows] = edges.norms
    return RoundStack(
        temperatures=temperatures,
        parents=_padded([[parent or 0 for parent in one.tree.parents] for one in rounds], width),
        depths=_padded([one.tree.depths for one in rounds], width),
        kept_first=_marked([one.always for one in rounds], width),
        drafted=_marked([range(1, one.tree.rows) for one in rounds], width),
        true=_marked([one.true_rows for one in rounds], width),
        logits=logits,
        norms=norms,
        prompts=np.array([number for number, _ in flat]),
        nodes=config.tree.nodes,
        edge_score=EDGE_SCORE if config.drafter == "beam" else 0.0,
    )


def toml_tables(config: DecodeConfig, fitted: FittedScores) -> str:
    """The tables [scores.SOURCE], with a comment that says what they are worth."""
    lines = [f"# fitted for {config.name} on {fitted.rounds} rounds of {fitted.prompts} prompts:"]
    lines += [f"# {sentence}." for sentence in fitted.verdict.rstrip(".").split(". ")]
    for source, score in fitted.scores.items():
        lines += ["", f"[scores.{source}]", f"temperature = {score.temperature}", f"bias = {score.bias}"]
    return "\n".join(lines) + "\n"


def _climb(start: Scores, temperatures: Sequence[float], rank: Callable[[Scores], tuple[float, float]]) -> Scores:
    """Better one coordinate at a time, until none gets better."""
    best = start
    while True:
        before = best
        for source in start:
            bias = best[source].bias
            lines = [{**best, source: SourceScore(temperature, bias)} for temperature in temperatures]
            best = min([best, *lines], key=rank)
            if source == _FREE_BIAS:
                temperature = best[source].temperature
                lines = [{**best, source: SourceScore(temperature, bias)} for bias in BIASES]
                best = min([best, *lines], key=rank)
        if best == before:
            return best


def _crossed(config: DecodeConfig, recorded: Sequence[Sequence[RecordedRound]]) -> Acceptance | None:
    """Acceptance of every prompt with scores that were fitted on the other half; None where a half has no round."""
    halves = [recorded[0::2], recorded[1::2]]
    if not all(any(half) for half in halves):
        return None
    accepted, rounds = np.zeros(len(recorded), np.int64), np.zeros(len(recorded), np.int64)
    for at, (own, other) in enumerate((halves, halves[::-1])):
        found = _by_prompt(stack_rounds(own, config), search(config, other), len(own))
        accepted[at::2], rounds[at::2] = found.accepted, found.rounds
    return Acceptance(accepted, rounds)


def _scores_in(config: DecodeConfig, stack: RoundStack) -> Scores:
    return {source: config.score_of(source) for source in SOURCES if source in stack.logits}


def _by_prompt(stack: RoundStack, scores: Scores, prompts: int) -> Acceptance:
    accepted = np.bincount(stack.prompts, stack.accepted(scores), prompts).astype(np.int64)
    return Acceptance(accepted, np.bincount(stack.prompts, minlength=prompts))


def _difference(after: Acceptance, before: Acceptance, seed: int) -> tuple[float, tuple[float, float]]:
    found = acceptance_lost("d", after, before, seed)
    interval = found["d_ci95"]
    assert isinstance(interval, list)
    return float(str(found["d"])), (interval[0], interval[1])


def _verdict(gain: float, interval: tuple[float, float], crossed: tuple[float, tuple[float, float]] | None) -> str:
    text = f"On the prompts fitted on: {_signed(gain, interval)} accepted tokens per round"
    if crossed is None:
        return f"{text}. One prompt with rounds cannot tell whether fitting helped; give more --prompts."
    of_crossed = f"{_signed(*crossed)} on each half of them with scores of the other half"
    if crossed[1][0] > 0:
        return f"{text}. Fitting helped: {of_crossed}."
    if crossed[1][1] < 0:
        return f"{text}. Fitting hurt: {of_crossed}. Do not use these scores."
    return f"{text}. Fitting did not help as far as these prompts can tell: {of_crossed}."


def _signed(value: float, interval: tuple[float, float]) -> str:
    return f"{value:+.3f} ({interval[0]:+.3f} to {interval[1]:+.3f})"


def _padded(rows: Iterable[Sequence[int]], width: int) -> np.ndarray:
    """int64 [rounds, width], 0 behind a round's end."""
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int64)


def _marked(rows: Sequence[Iterable[int]], width: int) -> np.ndarray:
    """bool [rounds, width], true at the columns that each round names."""
    marks = np.zeros((len(rows), width), bool)
    for place, columns in enumerate(rows):
        marks[place, list(columns)] = True
    return marks
