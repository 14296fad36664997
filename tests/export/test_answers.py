"""Answers in batches against the family's verifier answering one prompt after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from calibration.prompts import encode_prompt, read_prompts
from calibration.states import greedy_sequence
from calibration.threads import one_thread
from calibration.verifier import load_verifier
from export.answers import greedy_sequences
from export.sources import load_tokenizer
from hyco_npu.family import CALIBRATION_PROMPTS, VERIFIER_DIR

if TYPE_CHECKING:
    from transformers import Gemma4ForCausalLM

TOKENS = 24


@pytest.fixture(scope="module")
def verifier() -> Gemma4ForCausalLM:
    return load_verifier(VERIFIER_DIR)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """More than one batch, of different lengths and not in their order."""
    tokenizer = load_tokenizer(VERIFIER_DIR)
    assert tokenizer is not None
    encoded = [encode_prompt(tokenizer, prompt) for prompt in read_prompts(CALIBRATION_PROMPTS)[:18]]
    assert len({len(ids) for ids in encoded}) > 4
    assert encoded != sorted(encoded, key=len)
    return encoded


def test_the_tokens_of_one_prompt_after_the_other(verifier: Gemma4ForCausalLM, prompts: list[list[int]]) -> None:
    with one_thread():
        found = greedy_sequences(verifier, prompts, TOKENS)
        wanted = [greedy_sequence(verifier, prompt, TOKENS) for prompt in prompts]
    assert found == wanted


def test_an_answer_ends_at_its_stop_token(
    verifier: Gemma4ForCausalLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = prompts[:3]
    stop = greedy_sequence(verifier, few[0], 6)[-1]
    monkeypatch.setattr(verifier.generation_config, "eos_token_id", [stop])
    found = greedy_sequences(verifier, few, TOKENS)
    assert found == [greedy_sequence(verifier, prompt, TOKENS) for prompt in few]
    assert found[0][-1] == stop
    assert len(found[0]) <= len(few[0]) + 6


def test_no_prompts(verifier: Gemma4ForCausalLM) -> None:
    assert greedy_sequences(verifier, [], TOKENS) == []
