"""Batched answers against transformers' generate on each prompt alone; close calls, sampling, broken-off runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from calibration import generate
from calibration.errors import ResponseFileError
from calibration.generate import (
    Answerer,
    GenerationOptions,
    answer_batch,
    generate_responses,
    sampling_noise,
    unfinished_path,
)
from calibration.prompts import Prompt
from calibration.responses import read_responses
from tests.calibration.test_prompts import word_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE = 40
STOPS = [3, 17]
GREEDY = GenerationOptions(max_new_tokens=14)


@pytest.fixture(scope="module")
def verifier() -> Any:
    """Layers sliding, sliding, full, with experts; window 8, which prompt and answer outgrow."""
    torch.manual_seed(0)
    config = Gemma4TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        head_dim=16,
        global_head_dim=32,
        attention_k_eq_v=True,
        sliding_window=8,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=24,
        final_logit_softcapping=30.0,
        tie_word_embeddings=False,  # tied random tables would repeat one token for ever
    )
    model: Any = Gemma4ForCausalLM(config).eval()
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 1:
            tensor.uniform_(0.3, 0.9)
        else:
            tensor.normal_(0.0, 1.0 if "embed" in name else tensor.shape[-1] ** -0.5)
    model.generation_config.eos_token_id = STOPS
    return model


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    # without token 0, which transformers' generate would take for padding
    return [rng.integers(1, VOCAB_SIZE, length).tolist() for length in (5, 1, 17, 9, 2, 12, 5, 30, 8, 3)]


def alone(verifier: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """New tokens of transformers' own greedy decoding."""
    with torch.no_grad():
        out = verifier.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    return list(out[0, len(prompt) :].tolist())


def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that are decoded from here on."""
    sizes: list[int] = []
    decode = generate._decode

    def counted(verifier: Any, prompts: Any, options: Any) -> Any:
        sizes.append(len(prompts))
        return decode(verifier, prompts, options)

    monkeypatch.setattr(generate, "_decode", counted)
    return sizes


def test_a_batch_answers_as_transformers_does_one_by_one(verifier: Any, prompts: list[list[int]]) -> None:
    wanted = [alone(verifier, prompt, 14) for prompt in prompts]
    answers = answer_batch(verifier, prompts, GREEDY)
    assert answers == wanted
    ends = [answer[-1] in STOPS for answer in answers]
    assert any(ends)
    assert not all(ends)
    assert len({len(answer) for answer in answers}) > 2  # rows leave the batch at different times


def test_most_rows_of_a_batch_need_no_second_look(
    verifier: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count_decodes(monkeypatch)
    answer_batch(verifier, prompts, GREEDY)
    assert sizes[0] == len(prompts)
    assert len(sizes) - 1 <= 2


@pytest.mark.parametrize("margin", ["_TOKEN_MARGIN", "_EXPERT_MARGIN"])
def test_close_calls_are_answered_alone(
    verifier: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, margin: str
) -> None:
    monkeypatch.setattr(generate, margin, 1e9)
    sizes = count_decodes(monkeypatch)
    assert answer_batch(verifier, prompts[:4], GREEDY) == [alone(verifier, prompt, 14) for prompt in prompts[:4]]
    assert sizes == [4, 1, 1, 1, 1]


def test_two_equal_best_tokens_are_a_close_call() -> None:
    scores = torch.tensor([[1.0, 5.0, 5.0], [1.0, 5.0, 5.1], [0.0, 9.0, 9.0 - 5e-5]])
    assert generate._close_tokens(scores, GREEDY).tolist() == [True, False, True]
    # at temperature 100 a difference of 1e-5 in scores is one of 1e-3 in logits
    warm = torch.tensor([[1.0, 1.0 + 1e-5, 0.0]], dtype=torch.float64)
    assert generate._close_tokens(warm, GenerationOptions(temperature=100.0)).tolist() == [False]
    assert generate._close_tokens(warm, GREEDY).tolist() == [True]


def test_experts_are_close_only_where_the_choice_could_turn_and_the_row_is_real(verifier: Any) -> None:
    router = next(module for module in verifier.modules() if type(module).__name__ == "Gemma4TextRouter")
    clear, close = [0.4, 0.3, 0.2, 0.1], [0.4, 0.25, 0.25, 0.1]  # two are chosen
    equal_but_both_chosen = [0.4, 0.4, 0.15, 0.05]
    with generate._watched_routers(verifier) as close_experts:
        (hook,) = router._forward_hooks.values()
        rows = [close, clear, clear, close, equal_but_both_chosen, clear]
        chosen = torch.zeros(6, 2, dtype=torch.long)
        hook(router, (), (torch.tensor(rows), torch.zeros(6, 2), chosen))
        # the first row's close position is padding
        assert close_experts(torch.tensor([[0, 1], [1, 1], [1, 1]])).tolist() == [False, True, False]
        assert close_experts(torch.tensor([[1, 1], [1, 1], [1, 1]])).tolist() == [False] * 3  # of no new forward
    assert not router._forward_hooks


def test_sampling_is_a_draw_from_the_softmax() -> None:
    logits, draws = np.array([1.0, 0.2, -0.5, 2.0, 0.0], dtype=np.float32), 20_000
    options = GenerationOptions(temperature=0.7, seed=5)
    stream = sampling_noise([2, 3], options, 5)
    tensor = torch.from_numpy(logits)[None]
    tokens = [int(generate._scores(tensor, [stream], options).argmax()) for _ in range(draws)]
    wanted = np.exp(logits / 0.7) / np.exp(logits / 0.7).sum()
    # five standard deviations
    assert np.abs(np.bincount(tokens, minlength=5) / draws - wanted).max() < 5 * 0.5 / draws**0.5


def test_a_sampled_answer_depends_on_prompt_and_seed_alone(verifier: Any, prompts: list[list[int]]) -> None:
    options = GenerationOptions(14, 1.0, 3)
    together = answer_batch(verifier, prompts, options)
    assert together == [answer_batch(verifier, [prompt], options)[0] for prompt in prompts]
    assert together != answer_batch(verifier, prompts, GenerationOptions(14, 1.0, 4))
    assert together != answer_batch(verifier, prompts, GREEDY)


def answerer(verifier: Any, batch: int = 4, options: GenerationOptions = GREEDY) -> Answerer:
    return Answerer(verifier, word_tokenizer(None), "a" * 64, options, batch)


def named(prompts: list[list[int]]) -> list[tuple[Prompt, list[int]]]:
    return [(Prompt(f"p:{number}", ("add one",), None, "math"), ids) for number, ids in enumerate(prompts)]


def test_the_file_is_in_the_prompts_order_whatever_the_batch(
    verifier: Any, prompts: list[list[int]], tmp_path: Path
) -> None:
    for name, batch in (("a.jsonl", 4), ("b.jsonl", 3)):
        described = generate_responses(answerer(verifier, batch), named(prompts), tmp_path / name, {"prompts": []})
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert (tmp_path / "a.meta.json").read_bytes() == (tmp_path / "b.meta.json").read_bytes()
    assert len(list(tmp_path.iterdir())) == 4
    responses = read_responses(tmp_path / "a.jsonl").responses
    assert [response.id for response in responses] == [f"p:{number}" for number in range(len(prompts))]
    for response, prompt in zip(responses, prompts, strict=True):
        assert list(response.prompt_token_ids) == prompt
        assert list(response.response_token_ids) == alone(verifier, prompt, 14)
        assert response.verifier_sha256 == "a" * 64
    wanted = {"responses": 10, "prompt_tokens": 92, "max_new_tokens": 14, "temperature": 0.0, "seed": 0, "prompts": []}
    assert described.items() >= wanted.items()


def break_off_after(done: int) -> Any:
    def progress(count: int) -> None:
        if count >= done:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("cut_off", ["", '{"prompt": 7, "tok'])
def test_a_run_that_was_broken_off_goes_on_and_gives_the_same_file(
    verifier: Any, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_off: str
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    generate_responses(answerer(verifier), named(prompts), whole, {})
    with pytest.raises(KeyboardInterrupt):
        generate_responses(answerer(verifier), named(prompts), out, {}, break_off_after(8))
    assert not out.exists()
    with unfinished_path(out).open("a") as file:
        file.write(cut_off)
    sizes = count_decodes(monkeypatch)
    generate_responses(answerer(verifier), named(prompts), out, {})
    assert sizes[0] == 2  # of ten prompts in batches of four
    assert out.read_bytes() == whole.read_bytes()
    assert json.loads(out.with_suffix(".meta.json").read_text()) == json.loads(
        whole.with_suffix(".meta.json").read_text()
    )
    assert not unfinished_path(out).exists()


def test_an_unfinished_run_is_not_mixed_with_another(verifier: Any, prompts: list[list[int]], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        generate_responses(answerer(verifier), named(prompts), out, {"chat": True}, break_off_after(4))
    kept = unfinished_path(out).read_bytes()
    others: list[tuple[Answerer, list[list[int]], bool]] = [
        (answerer(verifier, options=GenerationOptions(13)), prompts, True),
        (answerer(verifier, options=GenerationOptions(14, 0.5)), prompts, True),
        (answerer(verifier), prompts[1:], True),
        (answerer(verifier), prompts, False),
        (Answerer(verifier, word_tokenizer(None), "b" * 64, GREEDY), prompts, True),
    ]
    for other, given, chat in others:
        with pytest.raises(ResponseFileError, match=r"out\.jsonl\.unfinished holds answers to other prompts"):
            generate_responses(other, named(given), out, {"chat": chat})
    assert unfinished_path(out).read_bytes() == kept
