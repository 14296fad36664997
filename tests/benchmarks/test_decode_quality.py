"""Tokens per round of every configuration on held-out prompts, at most 33 verified rows, with paired intervals.

Prompts: GSM8K's test problems 101 to 160 and Spec-Bench's mathematical ones, neither of which the family, its keep sets
or the configurations were made with. Ratios are of sums over prompts; intervals are 95 % of a bootstrap over prompts
that takes the same ones for both configurations. Run by name:

    make test PYTEST_ARGS="tests/benchmarks/test_decode_quality.py -s"
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from calibration.prompts import read_prompts
from hyco_npu.decode.config import load_config
from hyco_npu.decode.models import Models
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.session import GenerationOptions, Session, encode_messages

if TYPE_CHECKING:
    from pathlib import Path

NEW_TOKENS = 96
ROWS = 33
RESAMPLES = 2000
GREEDY = ("cloud-mtp", "specedge", "specedge-pd", "hyco-bare", "hyco-exact")
SAMPLED = ("cloud-mtp", "specedge-eps", "hyco", "hyco-2p")
GOALS = {
    0.0: {("hyco-exact", "cloud-mtp"): 1.31, ("hyco-exact", "specedge"): 1.13},
    0.7: {("hyco", "cloud-mtp"): 1.54, ("hyco", "specedge-eps"): 1.14},
}


@pytest.fixture(scope="module")
def prompts(shared_dir: Path) -> dict[str, list[str]]:
    lines = (shared_dir / "data" / "gsm8k" / "test.jsonl").read_text().splitlines()[100:160]
    spec_bench = read_prompts(shared_dir / "data" / "spec_bench" / "question.jsonl")
    return {
        "gsm8k": [json.loads(line)["question"] for line in lines],
        "spec-bench math": [p.turns[0] for p in spec_bench if p.category == "math_reasoning"],
    }


def counts(models: Models, name: str, texts: list[str], temperature: float) -> np.ndarray:
    """(tokens behind the first, rounds) of every prompt, int64 [prompts, 2]."""
    config, found = load_config(name), []
    for seed, text in enumerate(texts):
        options = GenerationOptions(NEW_TOKENS, Sampling(temperature), seed)
        prompt = encode_messages(models.tokenizer, [{"role": "user", "content": text}])
        rounds = list(Session(models, config, options).generate(prompt))[1:]
        assert all(one.tree.rows <= ROWS for one in rounds)
        found.append((sum(len(one.emitted) for one in rounds), len(rounds)))
    return np.array(found)


def mat(of_prompts: np.ndarray) -> float:
    return float(of_prompts[:, 0].sum() / of_prompts[:, 1].sum())


def interval(own: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    picks = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    ours, theirs = (part[picks].sum(axis=1) for part in (own, other))
    low, high = np.percentile((ours[:, 0] / ours[:, 1]) / (theirs[:, 0] / theirs[:, 1]), [2.5, 97.5])
    return float(low), float(high)


@pytest.mark.parametrize(("temperature", "names"), [(0.0, GREEDY), (0.7, SAMPLED)], ids=["greedy", "sampled"])
def test_more_tokens_a_round_than_the_baselines(
    prompts: dict[str, list[str]], temperature: float, names: tuple[str, ...]
) -> None:
    models, missed = Models(engine="onnx"), []
    for source, texts in prompts.items():
        found = {name: counts(models, name, texts, temperature) for name in names}
        print(f"\n{source}, {len(texts)} prompts, temperature {temperature}")
        for name in names:
            print(f"  {name:13s} MAT {mat(found[name]):.3f}")
        for (own, other), goal in GOALS[temperature].items():
            ratio, (low, high) = mat(found[own]) / mat(found[other]), interval(found[own], found[other])
            print(f"  {own} / {other}: {ratio:.3f} ({low:.3f} to {high:.3f}), goal {goal}")
            if ratio < goal:
                missed.append((source, own, other, ratio))
    assert not missed
