"""The stages' arithmetic against transformers: rows of the head, batches of greedy answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from hyco_npu.family import architecture
from hyco_npu.family.corpus import Document
from hyco_npu.family.stages import Recipe, Run, answer_batch, answer_nll, chain_loss, head_rows, make_own_text
from hyco_npu.family.tokenizer import train_tokenizer
from quant.errors import HycoError
from tests.hyco_npu.family.builders import make_telling, write_problems

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM

WINDOW = architecture.SLIDING_WINDOW


@pytest.fixture(scope="module")
def verifier() -> Gemma4ForCausalLM:
    torch.manual_seed(1)
    return make_telling(architecture.build_verifier(), seed=1)


@pytest.fixture(scope="module")
def head() -> Gemma4AssistantForCausalLM:
    torch.manual_seed(2)
    return make_telling(architecture.build_mtp(), seed=2)


@pytest.mark.parametrize("position", [1, 5, WINDOW - 1, WINDOW, WINDOW + 1, 89])
def test_head_row_equals_transformers_single_row(
    verifier: Gemma4ForCausalLM, head: Gemma4AssistantForCausalLM, position: int
) -> None:
    ids = torch.randint(6, 2048, (2, 90))
    with torch.no_grad():
        out = verifier(ids, use_cache=False, return_shared_kv_states=True, output_hidden_states=True)
        keys_values = dict(out.shared_kv_states)
        inputs = torch.cat([verifier.model.embed_tokens(ids), out.hidden_states[-1].roll(1, 1)], -1)
        logits, hidden = head_rows(head, inputs, keys_values)
        # transformers' bidirectional window admits W + 1 keys when it is given more: hand it the last W alone.
        first = {"full_attention": 0, "sliding_attention": max(0, position - WINDOW)}
        expected = head(
            inputs_embeds=inputs[:, position : position + 1],
            position_ids=torch.tensor([[position]]),
            shared_kv_states={
                kind: (keys[:, :, first[kind] : position], values[:, :, first[kind] : position])
                for kind, (keys, values) in keys_values.items()
            },
        )
    torch.testing.assert_close(logits[:, position], expected.logits[:, 0], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(hidden[:, position], expected.last_hidden_state[:, 0], rtol=1e-4, atol=2e-5)


def test_chain_loss_is_the_discounted_divergence_of_its_steps(
    verifier: Gemma4ForCausalLM, head: Gemma4AssistantForCausalLM
) -> None:
    """One position at a time, teacher-forced tokens, the head's own hidden state fed back, by transformers' forward."""
    ids = torch.randint(6, 2048, (1, 9))
    with torch.no_grad():
        result = chain_loss(head, verifier, ids, torch.ones(1, 9, dtype=torch.bool))
        out = verifier(ids, use_cache=False, return_shared_kv_states=True, output_hidden_states=True)
        divergences: list[list[float]] = [[], [], [], []]
        for position in range(1, 9):
            hidden = out.hidden_states[-1][:, position - 1 : position]
            for step in range(4):
                if position + step >= 9:
                    break
                token = ids[:, position + step : position + step + 1]
                row = head(
                    inputs_embeds=torch.cat([verifier.model.embed_tokens(token), hidden], -1),
                    position_ids=torch.tensor([[position]]),
                    shared_kv_states={
                        kind: (k[:, :, :position], v[:, :, :position]) for kind, (k, v) in out.shared_kv_states.items()
                    },
                )
                hidden = row.last_hidden_state
                teacher = out.logits[0, position + step].log_softmax(-1)
                divergence = (teacher.exp() * (teacher - row.logits[0, 0].log_softmax(-1))).sum()
                divergences[step].append(divergence.item())
    expected = sum(0.8**step * sum(values) / len(values) for step, values in enumerate(divergences))
    assert result["loss"].item() == pytest.approx(expected, rel=1e-4)


def test_greedy_answers_equal_transformers_generate(verifier: Gemma4ForCausalLM) -> None:
    prompts = [Document(row.tolist(), 20) for row in torch.randint(6, 2048, (4, 20))]
    ids = torch.tensor([p.ids for p in prompts])
    answers = answer_batch(verifier, prompts, greedy_rows=3, max_new_tokens=16)
    generated = verifier.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, eos_token_id=None
    )
    assert [a.ids for a in answers[:3]] == generated[:3].tolist()
    assert {a.prompt_length for a in answers} == {20}
    assert len({tuple(a.ids[20:]) for a in answers[:3]}) > 1


def test_answers_end_with_the_first_stop_token(verifier: Gemma4ForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Document(row.tolist(), 20) for row in torch.randint(6, 2048, (3, 20))]
    ids = torch.tensor([p.ids for p in prompts])
    free = verifier.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, eos_token_id=None
    )
    stop = int(free[0, 28])
    monkeypatch.setattr(verifier.generation_config, "eos_token_id", [1, stop])
    answers = answer_batch(verifier, prompts, greedy_rows=3, max_new_tokens=16)
    for answer, row in zip(answers, free.tolist(), strict=True):
        end = row.index(stop, 20) + 1 if stop in row[20:] else len(row)
        assert answer.ids == row[:end]


def test_answer_nll_equals_transformers_loss_over_the_answer(verifier: Gemma4ForCausalLM) -> None:
    ids = torch.randint(6, 2048, (1, 30))
    labels = ids.clone()
    labels[:, :12] = -100
    with torch.no_grad():
        expected = verifier(ids, labels=labels).loss.item()
    assert answer_nll(verifier, [Document(ids[0].tolist(), 12)]) == pytest.approx(expected, rel=1e-5)


def test_corpus_without_questions_of_one_length_is_an_error(verifier: Gemma4ForCausalLM, tmp_path: Path) -> None:
    corpus = write_problems(tmp_path / "few.jsonl", 5)
    run = Run(corpus, corpus, tmp_path, 0, Recipe())
    with pytest.raises(HycoError, match=r"few\.jsonl: no 16 questions have the same length"):
        make_own_text(run, train_tokenizer(["Tom has apples"]), verifier)
