"""The verifier against transformers: texts equal plain greedy decoding, states equal a fresh full forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from calibration.states import HeadState, record_states
from hyco_npu.decode.loop import decode
from hyco_npu.decode.verifier import GreedyVerifier

WINDOW = 8
VOCABULARY = 120


@pytest.fixture(scope="module")
def model() -> Gemma4ForCausalLM:
    """A tiny random verifier: MoE, k_eq_v, window 8, every layer scalar far from 1."""
    torch.manual_seed(3)
    config = Gemma4TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        final_logit_softcapping=30.0,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=16,
        max_position_embeddings=256,
        eos_token_id=[1, 5],
    )
    model = Gemma4ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(6.0)  # sharp enough that near-ties do not decide
        for layer in model.model.layers:
            layer.layer_scalar.fill_(0.6)
    model.generation_config.eos_token_id = [1, 5]
    return model


def greedy(model: Gemma4ForCausalLM, prompt: list[int], count: int) -> list[int]:
    """transformers' own greedy decoding."""
    out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count)
    return list(out[0, len(prompt) :].tolist())


class ScriptedDrafter:
    """Drafts the true continuation, spoilt at some places; remembers the states it was given."""

    def __init__(self, text: list[int], start: int, spoil: set[int]) -> None:
        self.text, self.start, self.spoil = text, start, spoil
        self.states: list[HeadState] = []

    def draft(self, state: HeadState) -> list[int]:
        self.states.append(state)
        at = state.position - self.start + 1
        return [
            (token + 1) % VOCABULARY if at + i in self.spoil else token
            for i, token in enumerate(self.text[at : at + 4])
        ]


@pytest.mark.parametrize("length", [1, 3, 7, 8, 9, 20])
@pytest.mark.parametrize("spoil", [set(), set(range(60)), {2, 3, 7, 11, 12, 13, 20}], ids=["right", "wrong", "mixed"])
def test_text_and_states_equal_transformers(model: Gemma4ForCausalLM, length: int, spoil: set[int]) -> None:
    rng = np.random.default_rng(length)
    prompt = [2, *rng.integers(6, VOCABULARY, length - 1).tolist()]
    text = greedy(model, prompt, 30)
    drafter = ScriptedDrafter(text, length, spoil)
    rounds = list(decode(GreedyVerifier(model, window=WINDOW), drafter, prompt, 30))
    assert [token for one in rounds for token in one.emitted] == text
    # Rows that were rejected must never reach the head: every state equals one cut from a forward that never drafted.
    positions = [state.position for state in drafter.states]
    fresh = record_states(model, [prompt + text], [positions], WINDOW)
    for state, wanted in zip(drafter.states, fresh, strict=True):
        assert state.token_id == wanted.token_id
        np.testing.assert_allclose(state.embedding, wanted.embedding, atol=1e-6)
        np.testing.assert_allclose(state.hidden, wanted.hidden, atol=2e-4)
        for kind in ("sliding", "full"):
            assert state.keys[kind].shape == wanted.keys[kind].shape
            np.testing.assert_allclose(state.keys[kind], wanted.keys[kind], atol=2e-4)
            np.testing.assert_allclose(state.values[kind], wanted.values[kind], atol=2e-4)


def test_a_right_draft_saves_forward_passes(model: Gemma4ForCausalLM) -> None:
    prompt = [2, 17, 40]
    text = greedy(model, prompt, 21)
    assert len(text) == 21, "the prompt must not end early"
    verifier = GreedyVerifier(model, WINDOW)
    list(decode(verifier, ScriptedDrafter(text, len(prompt), set()), prompt, 21))
    assert verifier.forward_passes == 5  # the prompt, then 20 tokens in rounds of 5


def test_all_stop_tokens_of_the_generation_config_count(model: Gemma4ForCausalLM) -> None:
    assert GreedyVerifier(model, WINDOW).stop_ids == {1, 5}


def test_verify_needs_a_prompt(model: Gemma4ForCausalLM) -> None:
    with pytest.raises(ValueError, match="before prefill"):
        GreedyVerifier(model, WINDOW).verify([7])
