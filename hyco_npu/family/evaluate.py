"""Held-out figures of the family: accepted tokens per round of each drafter, likelihood of human answers.

Greedy chains of four tokens against the verifier's own greedy text, counted from the verifier's finished text: this
module knows neither quantised graphs nor decode loops. Measured in float32 with the weights as stored, by transformers'
own forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from transformers import PreTrainedTokenizerFast

from hyco_npu.family import corpus
from hyco_npu.family.stages import CHAIN_STEPS, answer_nll, head_rows, load_mtp, load_slm, load_verifier
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM

DEFAULT_PROMPTS = 60
FIRST_ROW = 100
"""Held-out rows before this one are left to the validation curve of training."""
MAX_NEW_TOKENS = 96
NLL_PROBLEMS = 200
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Family:
    """The three models with float32 arithmetic and the tokenizer they share.

    `slm_float` is the SLM before quantisation, `slm_control` that one trained on without rounding; neither ships.
    """

    verifier: Gemma4ForCausalLM
    mtp: Gemma4AssistantForCausalLM
    slm: Gemma4ForCausalLM
    slm_float: Gemma4ForCausalLM
    slm_control: Gemma4ForCausalLM
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class Acceptance:
    """Accepted draft tokens and rounds of every prompt, each int64 [prompts]."""

    accepted: np.ndarray
    rounds: np.ndarray

    def figures(self, name: str, seed: int) -> dict[str, object]:
        """Accepted tokens per round over all prompts, with the 95 % interval of a bootstrap over prompts."""
        if not self.rounds.sum():
            raise HycoError(f"{name}: the verifier stopped at once on all {len(self.rounds)} prompts; nothing to draft")
        return {
            f"{name}_accepted_per_round": float(self.accepted.sum() / self.rounds.sum()),
            f"{name}_accepted_per_round_ci95": list(bootstrap_interval(self.accepted, self.rounds, seed)),
            f"{name}_rounds": int(self.rounds.sum()),
        }


def load_family(folder: Path, work_dir: Path) -> Family:
    """The family in `folder`/verifier, mtp and slm, the SLM's other forms in `work_dir`; the verifier's tokenizer."""
    return Family(
        verifier=load_verifier(folder / "verifier"),
        mtp=load_mtp(folder / "mtp"),
        slm=load_slm(folder / "slm"),
        slm_float=load_slm(work_dir / "slm_float"),
        slm_control=load_slm(work_dir / "slm_control"),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "verifier"),
    )


def evaluate_family(
    folder: Path, work_dir: Path, held_out: Path, prompts: int = DEFAULT_PROMPTS, seed: int = 0
) -> dict[str, object]:
    """Figures of the family in `folder` on rows FIRST_ROW.. of `held_out` (GSM8K's JSON lines).

    `work_dir` of its training holds the SLM in floats. A file with fewer rows gives fewer prompts; the counts are among
    the figures. `verifier_answer_nll` is in nats per token of the human answers. `seed` decides the bootstrap alone.
    """
    if prompts < 1:
        raise UsageError(f"the number of prompts is {prompts}; it has to be 1 or more")
    rows = corpus.read_problems(held_out)[FIRST_ROW:]
    if not rows:
        raise UsageError(f"{held_out} has no row {FIRST_ROW + 1}: the rows before are for the training's validation")
    family = load_family(folder, work_dir)
    documents = [corpus.encode_problem(family.tokenizer, row["question"]) for row in rows[:prompts]]
    answers = [corpus.encode_problem(family.tokenizer, row["question"], row["answer"]) for row in rows[:NLL_PROBLEMS]]
    figures: dict[str, object] = {
        "prompts": len(documents),
        "max_new_tokens": MAX_NEW_TOKENS,
        "draft_tokens": CHAIN_STEPS,
    }
    measured = measure_acceptance(family, documents, MAX_NEW_TOKENS)
    for name, acceptance in measured.items():
        figures |= acceptance.figures(name, seed)
    figures |= acceptance_lost("slm_quantization_cost", measured["slm_float"], measured["slm"], seed)
    figures |= acceptance_lost("slm_rounding_cost", measured["slm_control"], measured["slm"], seed)
    figures["verifier_answer_nll"] = answer_nll(family.verifier, answers)
    figures["answer_problems"] = len(answers)
    return figures


def measure_acceptance(
    family: Family, prompts: Sequence[corpus.Document], max_new_tokens: int
) -> dict[str, Acceptance]:
    """Acceptance by drafter: "mtp", the SLM's three forms, "union" (the longer draft of mtp and slm in a round)."""
    forms = {"slm": family.slm, "slm_float": family.slm_float, "slm_control": family.slm_control}
    counts: dict[str, list[tuple[int, int]]] = {name: [] for name in ("mtp", *forms, "union")}
    for prompt in track(prompts, "held-out prompts"):
        text = greedy_text(family.verifier, prompt.ids, max_new_tokens)
        ids = torch.tensor([text])
        matched = {name: slm_matches(slm, ids) for name, slm in forms.items()}
        matched["mtp"] = mtp_matches(family.mtp, family.verifier, ids)
        matched["union"] = torch.maximum(matched["mtp"], matched["slm"])
        for name, matches in matched.items():
            counts[name].append(count_rounds(matches.tolist(), first=prompt.prompt_length))
    return {name: Acceptance(*np.array(pairs, dtype=np.int64).T) for name, pairs in counts.items()}


def greedy_text(verifier: Gemma4ForCausalLM, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The prompt and the verifier's greedy continuation up to a stop token, one token at a time with the KV cache."""
    stop = verifier.generation_config.eos_token_id
    ids = list(prompt)
    with torch.no_grad():
        out = verifier(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        for _ in range(max_new_tokens):
            ids.append(int(out.logits[0, -1].argmax()))
            if ids[-1] in stop:
                break
            out = verifier(torch.tensor([ids[-1:]]), cache=out.cache, use_cache=True, logits_to_keep=1)
    return ids


def mtp_matches(head: Gemma4AssistantForCausalLM, verifier: Gemma4ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Accepted tokens [length] of the head's greedy chain begun at each position of `ids` [1, length].

    All positions run at once: a chain reads the keys before its position only, so that the text after it is unseen.
    """
    tokens, drafts = ids, []
    with torch.no_grad():
        out = verifier(ids, use_cache=False, return_shared_kv_states=True, output_hidden_states=True)
        keys_values = {kind: (keys, values) for kind, (keys, values) in out.shared_kv_states.items()}
        hidden = F.pad(out.hidden_states[-1], (0, 0, 1, 0))[:, :-1]
        for _ in range(CHAIN_STEPS):
            embeddings = verifier.model.embed_tokens(tokens)
            logits, hidden = head_rows(head, torch.cat([embeddings, hidden], -1), keys_values)
            tokens = logits.argmax(-1)
            drafts.append(tokens[0])
    return _matched_prefix(torch.stack(drafts, 1), ids[0])


def slm_matches(slm: Gemma4ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Accepted tokens [length] of the SLM's greedy chain begun at each position of `ids` [1, length].

    A chain counts up to its first mismatch and until then equals the text, so one pass over the text gives all chains.
    """
    with torch.no_grad():
        predicted = slm(ids, use_cache=False).logits[0].argmax(-1)
    return _matched_prefix(_windows(predicted)[:-1], ids[0])


def count_rounds(matches: Sequence[int], first: int) -> tuple[int, int]:
    """(accepted tokens, rounds) of decoding the text: token `first` is known, each round adds the accepted and one."""
    accepted, rounds, position = 0, 0, first
    while position < len(matches) - 1:
        accepted += matches[position]
        rounds += 1
        position += matches[position] + 1
    return accepted, rounds


def bootstrap_interval(accepted: np.ndarray, rounds: np.ndarray, seed: int) -> tuple[float, float]:
    """Percentiles 2.5 and 97.5 of sum(accepted) / sum(rounds) over resampled prompts."""
    return _middle_95(_resampled_ratios(accepted, rounds, seed))


def acceptance_lost(name: str, before: Acceptance, after: Acceptance, seed: int) -> dict[str, object]:
    """Accepted tokens per round that `after` lacks, with its 95 % interval; below 0 where it drafts better.

    Paired: a bootstrap sample takes the same prompts of both.
    """
    lost = before.accepted.sum() / before.rounds.sum() - after.accepted.sum() / after.rounds.sum()
    ratios = [_resampled_ratios(side.accepted, side.rounds, seed) for side in (before, after)]
    return {name: float(lost), f"{name}_ci95": list(_middle_95(ratios[0] - ratios[1]))}


def _resampled_ratios(accepted: np.ndarray, rounds: np.ndarray, seed: int) -> np.ndarray:
    # float64 [_RESAMPLES]; one seed and number of prompts: the same prompts in every sample
    picks = np.random.default_rng(seed).integers(0, len(rounds), (_RESAMPLES, len(rounds)))
    ratios: np.ndarray = accepted[picks].sum(1) / np.maximum(rounds[picks].sum(1), 1)
    return ratios


def _middle_95(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _windows(ids: torch.Tensor) -> torch.Tensor:
    # [length] -> [length + 1, CHAIN_STEPS]: row n holds ids n .. n + CHAIN_STEPS - 1, -1 beyond the end.
    return F.pad(ids, (0, CHAIN_STEPS), value=-1).unfold(0, CHAIN_STEPS, 1)


def _matched_prefix(drafts: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    # drafts [length, CHAIN_STEPS]: row n is the draft for ids n + 1 ..; -1 beyond the end of the text never matches.
    future = _windows(ids)[1:]
    return ((drafts == future) & (future >= 0)).long().cumprod(1).sum(1)
