"""Tokens per second against transformers' own speculative decoding, same verifier, head, prompts, machine and run.

transformers drafts with the head alone (`generate(assistant_model=...)`). Our configurations run beside it, prompt by
prompt in turns, so that a slow minute of the machine hits both. Run by name:

    make test PYTEST_ARGS="tests/benchmarks/test_decode_speed.py -s"
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROMPTS = 12
NEW_TOKENS = 96
CONFIGS = ("plain", "cloud-mtp", "specedge", "hyco-exact", "hyco-2p")
GOAL = 2.0
TREE_SHARE = 0.05
TREE_PHASES = ("device.tree", "device.state", "server.accept")


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(engine="onnx")


@pytest.fixture(scope="module")
def prompts(models: Models) -> list[list[int]]:
    chosen = read_prompts(HELD_OUT_PROMPTS)[:PROMPTS]
    return [encode_messages(models.tokenizer, [{"role": "user", "content": p.turns[0]}]) for p in chosen]


def transformers_decoder() -> Callable[[Sequence[int]], list[int]]:
    verifier: Any = load_verifier(VERIFIER_DIR)
    head = Gemma4AssistantForCausalLM.from_pretrained(MTP_DIR, dtype=torch.float32).eval()

    # the released heads name their draft length here; the family's is the paper's
    head.generation_config.num_assistant_tokens = CHAIN_LENGTH
    head.generation_config.num_assistant_tokens_schedule = "constant"

    def decode(prompt: Sequence[int]) -> list[int]:
        ids = torch.tensor([list(prompt)])
        out = verifier.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, assistant_model=head)
        return [int(token) for token in out[0, len(prompt) :]]

    return decode


def our_decoder(models: Models, name: str, phases: dict[str, float]) -> Callable[[Sequence[int]], list[int]]:
    config = load_config(name)
    if name == "hyco-2p":
        config = config.model_copy(update={"acceptance": load_config("hyco-exact").acceptance})

    def decode(prompt: Sequence[int]) -> list[int]:
        tokens: list[int] = []
        for one in Session(models, config, GenerationOptions(NEW_TOKENS)).generate(prompt):
            tokens += one.emitted
            for phase, seconds in {**one.phases, "all": one.seconds}.items():
                phases[phase] = phases.get(phase, 0.0) + seconds
        return tokens

    return decode


def test_faster_than_transformers_at_equal_output(models: Models, prompts: list[list[int]]) -> None:
    phases: dict[str, dict[str, float]] = {name: {} for name in CONFIGS}
    decoders = {"transformers": transformers_decoder()}
    decoders |= {name: our_decoder(models, name, phases[name]) for name in CONFIGS}
    seconds = dict.fromkeys(decoders, 0.0)
    tokens = dict.fromkeys(decoders, 0)
    for decode in decoders.values():
        decode(prompts[0])
    for of_config in phases.values():
        of_config.clear()
    for prompt in prompts:
        texts = {}
        for name, decode in decoders.items():
            started = time.perf_counter()
            texts[name] = decode(prompt)
            seconds[name] += time.perf_counter() - started
            tokens[name] += len(texts[name])
        assert {tuple(text) for text in texts.values()} == {tuple(texts["plain"])}
    rates = {name: tokens[name] / seconds[name] for name in decoders}
    for name, rate in rates.items():
        share = {phase: value / phases[name]["all"] for phase, value in phases[name].items()} if name in phases else {}
        parts = ", ".join(f"{phase} {value:.0%}" for phase, value in sorted(share.items()) if phase != "all")
        print(f"\n{name:14s} {rate:7.1f} tokens/s, {rate / rates['transformers']:.2f} x transformers  {parts}", end="")
    tree = sum(phases["hyco-exact"][phase] for phase in TREE_PHASES) / phases["hyco-exact"]["all"]
    print(f"\ntree work outside the models: {tree:.1%} of a round of hyco-exact")
    best = max(rates[name] for name in CONFIGS) / rates["transformers"]
    assert best >= GOAL
    assert tree < TREE_SHARE
