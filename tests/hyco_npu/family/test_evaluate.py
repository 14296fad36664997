"""Acceptance, vectorised over all positions, against one chain at a time by transformers' forward and generate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats

from hyco_npu.family import architecture
from hyco_npu.family.corpus import Document
from hyco_npu.family.evaluate import (
    Acceptance,
    Family,
    acceptance_lost,
    bootstrap_interval,
    count_rounds,
    evaluate_family,
    measure_acceptance,
    mtp_matches,
    slm_matches,
)
from hyco_npu.family.tokenizer import train_tokenizer
from quant.errors import HycoError, UsageError
from tests.hyco_npu.family.builders import make_telling, write_problems

if TYPE_CHECKING:
    from pathlib import Path

NEW_TOKENS = 14
SLM_FORMS = ("slm", "slm_float", "slm_control")
WINDOW = architecture.SLIDING_WINDOW


@pytest.fixture(scope="module")
def family() -> Family:
    torch.manual_seed(3)
    models = architecture.build_verifier(), architecture.build_mtp(), *(architecture.build_slm() for _ in range(3))
    return Family(
        *(make_telling(model, seed) for seed, model in enumerate(models)), train_tokenizer(["Tom has apples"])
    )


def _generate(model: torch.nn.Module, ids: list[int], count: int) -> list[int]:
    prompt = torch.tensor([ids])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count)
    return out[0].tolist()


def _slow_mtp_chain(family: Family, ids: list[int]) -> list[int]:
    """Four greedy tokens after `ids`: the last token is the chain's first, the keys of those before it are read."""
    known, token, chain = torch.tensor([ids[:-1]]), ids[-1], []
    with torch.no_grad():
        out = family.verifier(known, use_cache=False, return_shared_kv_states=True, output_hidden_states=True)
        window = {"full_attention": len(ids), "sliding_attention": WINDOW}
        keys_values = {
            kind: (k[:, :, -window[kind] :], v[:, :, -window[kind] :]) for kind, (k, v) in out.shared_kv_states.items()
        }
        hidden = out.hidden_states[-1][:, -1:]
        for _ in range(4):
            row = family.mtp(
                inputs_embeds=torch.cat([family.verifier.model.embed_tokens(torch.tensor([[token]])), hidden], -1),
                position_ids=torch.tensor([[len(ids) - 1]]),
                shared_kv_states=keys_values,
            )
            hidden, token = row.last_hidden_state, int(row.logits.argmax())
            chain.append(token)
    return chain


def _prefix(draft: list[int], text: list[int]) -> int:
    count = 0
    while count < min(len(draft), len(text)) and draft[count] == text[count]:
        count += 1
    return count


def _slm_prefix(slm: torch.nn.Module, known: list[int], text: list[int]) -> int:
    return _prefix(_generate(slm, known, 4)[len(known) :], text[len(known) :])


@pytest.mark.parametrize("prompt_length", [7, WINDOW - 10])
def test_measured_acceptance_equals_slow_decoding(family: Family, prompt_length: int) -> None:
    prompt = torch.randint(6, 2048, (prompt_length,)).tolist()
    text = _generate(family.verifier, prompt, NEW_TOKENS)
    chains = {
        "mtp": lambda known: _prefix(_slow_mtp_chain(family, known), text[len(known) :]),
        **{name: lambda known, n=name: _slm_prefix(getattr(family, n), known, text) for name in SLM_FORMS},
    }
    chains["union"] = lambda known: max(chains["mtp"](known), chains["slm"](known))
    measured = measure_acceptance(family, [Document(prompt, prompt_length)], NEW_TOKENS)
    for name, chain in chains.items():
        accepted, rounds, position = 0, 0, prompt_length
        while position < len(text) - 1:
            matched = chain(text[: position + 1])
            accepted, rounds, position = accepted + matched, rounds + 1, position + matched + 1
        assert (measured[name].accepted.tolist(), measured[name].rounds.tolist()) == ([accepted], [rounds]), name


def test_matches_vary_and_end_with_the_text(family: Family) -> None:
    """The slow comparison above says something only if drafts are sometimes right and sometimes wrong."""
    ids = torch.tensor([_generate(family.verifier, torch.randint(6, 2048, (20,)).tolist(), 60)])
    for matches in (mtp_matches(family.mtp, family.verifier, ids), slm_matches(family.slm, ids)):
        assert len(set(matches[20:].tolist())) >= 3
        assert all(count <= ids.shape[1] - 1 - position for position, count in enumerate(matches.tolist()))


def test_a_drafter_that_is_the_verifier_is_always_accepted(family: Family) -> None:
    text = _generate(family.verifier, torch.randint(6, 2048, (20,)).tolist(), 31)
    matches = slm_matches(family.verifier, torch.tensor([text])).tolist()
    assert matches[20:] == [4] * 27 + [3, 2, 1, 0]
    assert count_rounds(matches, first=20) == (24, 6)  # token 20 is known, six rounds bring five each


def test_rounds_by_hand() -> None:
    #         position: 0  1  2  3  4  5  6
    assert count_rounds([9, 9, 1, 0, 2, 0, 0], first=2) == (3, 2)
    assert count_rounds([0, 0, 0], first=2) == (0, 0)


def test_interval_agrees_with_scipy() -> None:
    rng = np.random.default_rng(1)
    rounds = rng.integers(15, 40, 60)
    accepted = (rounds * rng.normal(2.4, 0.6, 60)).astype(int)
    reference = stats.bootstrap(
        (accepted, rounds),
        lambda a, r: a.sum(-1) / r.sum(-1),
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=3000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert bootstrap_interval(accepted, rounds, seed=0) == pytest.approx((reference.low, reference.high), abs=0.02)


def test_lost_acceptance_is_paired() -> None:
    """Prompts differ by far more than the two models do: the interval of the difference is scipy's on pairs."""
    rng = np.random.default_rng(4)
    rounds = rng.integers(15, 40, 60)
    accepted = (rounds * rng.uniform(1.0, 4.0, 60)).astype(int)
    before, after = Acceptance(accepted, rounds), Acceptance(accepted - rng.integers(0, 9, 60), rounds + 1)
    figures = acceptance_lost("cost", before, after, seed=0)
    pairs = (before.accepted, before.rounds, after.accepted, after.rounds)

    def difference(a: np.ndarray, r: np.ndarray, b: np.ndarray, s: np.ndarray) -> float:
        return float(a.sum() / r.sum() - b.sum() / s.sum())

    reference = stats.bootstrap(
        pairs,
        difference,
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=3000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert figures["cost"] == pytest.approx(difference(*pairs))
    low, high = figures["cost_ci95"]
    assert (low, high) == pytest.approx((reference.low, reference.high), abs=0.01)
    width = np.subtract(*bootstrap_interval(before.accepted, before.rounds, seed=0)[::-1])
    assert high - low < 0.3 * width


def test_a_better_result_is_a_negative_loss() -> None:
    before, after = (Acceptance(np.array(accepted), np.array([2, 2])) for accepted in ([2, 4], [4, 6]))
    assert acceptance_lost("cost", before, after, seed=0) == {
        "cost": -1.0,
        "cost_ci95": [-1.0, -1.0],
    }


def test_figures_are_the_ratio_of_sums() -> None:
    figures = Acceptance(np.array([6, 2]), np.array([2, 2])).figures("mtp", seed=0)
    assert figures["mtp_accepted_per_round"] == 2.0
    assert figures["mtp_accepted_per_round_ci95"] == [1.0, 3.0]
    assert figures["mtp_rounds"] == 4
    with pytest.raises(HycoError, match="stopped at once on all 2 prompts"):
        Acceptance(np.array([0, 0]), np.array([0, 0])).figures("mtp", seed=0)


def test_too_short_held_out_file_and_no_prompts_are_errors(tmp_path: Path) -> None:
    held_out = write_problems(tmp_path / "short.jsonl", 100)
    with pytest.raises(UsageError, match=r"short\.jsonl has no row 101"):
        evaluate_family(tmp_path, tmp_path, held_out)
    with pytest.raises(UsageError, match="prompts is 0"):
        evaluate_family(tmp_path, tmp_path, held_out, prompts=0)
