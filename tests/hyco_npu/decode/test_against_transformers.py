"""Our chain against transformers' own speculative decoding: same verifier, same head, same text, fewer rounds.

transformers hands rows of rejected tokens to the head (test_stale_rows.py); that costs acceptance and nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma4AssistantForCausalLM

from calibration.prompts import read_prompts
from calibration.verifier import load_verifier
from export.mtp.chain import CHAIN_LENGTH
from hyco_npu.decode.config import load_config
from hyco_npu.decode.models import Models
from hyco_npu.decode.session import GenerationOptions, Session, encode_messages
from hyco_npu.family import HELD_OUT_PROMPTS, MTP_DIR, VERIFIER_DIR

PROMPTS, TOKENS = 5, 96


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Models().tokenizer
    chosen = read_prompts(HELD_OUT_PROMPTS)[:PROMPTS]
    return [encode_messages(tokenizer, [{"role": "user", "content": prompt.turns[0]}]) for prompt in chosen]


def their_texts(prompts: list[list[int]]) -> tuple[list[list[int]], int]:
    """Texts, and forward passes of the verifier."""
    verifier: Any = load_verifier(VERIFIER_DIR)
    head = Gemma4AssistantForCausalLM.from_pretrained(MTP_DIR, dtype=torch.float32).eval()
    head.generation_config.num_assistant_tokens = CHAIN_LENGTH
    head.generation_config.num_assistant_tokens_schedule = "constant"
    passes, texts = 0, []
    forward = verifier.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(*args, **kwargs)

    verifier.forward = counted
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = verifier.generate(ids, max_new_tokens=TOKENS, do_sample=False, assistant_model=head)
        texts.append([int(token) for token in out[0, len(prompt) :]])
    return texts, passes


def test_same_texts_in_fewer_passes(prompts: list[list[int]]) -> None:
    theirs, their_passes = their_texts(prompts)
    models, config = Models(), load_config("cloud-mtp")
    texts, passes = [], 0
    for prompt in prompts:
        rounds = list(Session(models, config, GenerationOptions(TOKENS)).generate(prompt))
        passes += len(rounds)
        texts.append([token for one in rounds for token in one.emitted])
    assert texts == theirs
    assert passes < their_passes
