"""Recorded verifier states against a full forward of transformers, sliced by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from calibration.states import greedy_sequence, record_states

SLIDING, FULL = "sliding_attention", "full_attention"
VOCAB_SIZE = 40


@pytest.fixture(scope="module")
def verifier() -> Any:
    """Layers sliding, full, sliding, full, sliding, full: the last of each kind is 4 and 5; softcap 30."""
    torch.manual_seed(0)
    config = Gemma4TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        layer_types=[SLIDING, FULL] * 3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        head_dim=16,
        global_head_dim=32,
        attention_k_eq_v=True,
        sliding_window=8,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        final_logit_softcapping=30.0,
    )
    model: Any = Gemma4ForCausalLM(config).eval()
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 1:
            tensor.uniform_(0.3, 0.9)
        else:
            tensor.normal_(0.0, 1.0 if "embed" in name else tensor.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="module")
def sequence() -> list[int]:
    return np.random.default_rng(0).integers(0, VOCAB_SIZE, 20).tolist()


def layer_keys_and_values(verifier: Any, ids: list[int], layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys (rotated) and values [kv_heads, rows, head_dim] of one layer, taken out of its own cache."""
    with torch.no_grad():
        out = verifier(torch.tensor([ids]), use_cache=True)
    cached = out.cache.layers[layer]
    return cached.keys[0].numpy(), cached.values[0].numpy()


def test_hidden_is_taken_behind_the_final_norm(verifier: Any, sequence: list[int]) -> None:
    """Trap 1. The output layer applied to it must give the verifier's own logits (softcapped at 30)."""
    with torch.no_grad():
        logits = verifier(torch.tensor([sequence])).logits[0]
    for state in record_states(verifier, [sequence], [[1, 7, 19]], window=32):
        raw = verifier.lm_head.weight @ torch.from_numpy(state.hidden)
        capped = 30 * torch.tanh(raw / 30)
        torch.testing.assert_close(capped, logits[state.position - 1], atol=1e-4, rtol=1e-4)


def test_hidden_and_token_are_one_apart(verifier: Any, sequence: list[int]) -> None:
    """Trap 2: the hidden state of row t-1 with the embedding of x_t; it does not know x_t yet."""
    changed = [*sequence[:7], (sequence[7] + 1) % VOCAB_SIZE, *sequence[8:]]
    (a,), (b,) = (list(record_states(verifier, [ids], [[7]], window=32)) for ids in (sequence, changed))
    assert (a.token_id, a.position) == (sequence[7], 7)
    np.testing.assert_allclose(a.hidden, b.hidden, atol=1e-5)
    assert np.abs(a.embedding - b.embedding).max() > 0.1
    rows = {kind: keys.shape[1] for kind, keys in a.keys.items()}
    assert rows == {"sliding": 7, "full": 7}


def test_embedding_is_scaled_as_transformers_scales(verifier: Any, sequence: list[int]) -> None:
    (state,) = record_states(verifier, [sequence], [[5]], window=32)
    raw = verifier.get_input_embeddings().weight[sequence[5]].detach().numpy()
    np.testing.assert_allclose(state.embedding, raw * np.sqrt(np.float32(32)), rtol=1e-6)


def test_keys_are_those_of_the_last_layer_of_each_kind(verifier: Any, sequence: list[int]) -> None:
    """The verifier is causal: the cache of the prefix alone holds the same rows."""
    for position in (1, 6, 8):  # a sliding cache holds at most 7 rows: look at no more of them
        (state,) = record_states(verifier, [sequence], [[position]], window=32)
        for kind, layer in (("sliding", 4), ("full", 5)):
            keys, values = layer_keys_and_values(verifier, sequence[:position], layer)
            rows = keys.shape[1]
            np.testing.assert_allclose(state.keys[kind][:, -rows:], keys, atol=1e-5)
            np.testing.assert_allclose(state.values[kind][:, -rows:], values, atol=1e-5)
        assert state.keys["sliding"].shape == (2, position, 16)
        assert state.values["full"].shape == (1, position, 32)


@pytest.mark.parametrize("window", [1, 4, 12, 19, 20, 64])
def test_rows_are_cut_to_the_window(verifier: Any, sequence: list[int], window: int) -> None:
    with torch.no_grad():
        out = verifier(torch.tensor([sequence]), return_shared_kv_states=True, use_cache=False)
    for state in record_states(verifier, [sequence], [[3, 12, 19]], window):
        first = max(0, state.position - window)
        for kind in ("sliding", "full"):
            keys, values = out.shared_kv_states[f"{kind}_attention"]
            np.testing.assert_allclose(state.keys[kind], keys[0, :, first : state.position].numpy(), atol=1e-6)
            np.testing.assert_allclose(state.values[kind], values[0, :, first : state.position].numpy(), atol=1e-6)


def test_several_sequences_in_order(verifier: Any, sequence: list[int]) -> None:
    states = list(record_states(verifier, [sequence, sequence[:5]], [[4, 2], [3]], window=8))
    assert [state.position for state in states] == [4, 2, 3]


@pytest.mark.parametrize("position", [0, 20, -1])
def test_positions_outside(verifier: Any, sequence: list[int], position: int) -> None:
    with pytest.raises(ValueError, match=rf"positions \[{position}\] outside 1\.\.19"):
        list(record_states(verifier, [sequence], [[5, position]], window=8))


def test_greedy_equals_transformers_generate(verifier: Any, sequence: list[int]) -> None:
    verifier.generation_config.eos_token_id = None
    prompt = sequence[:6]
    with torch.no_grad():
        wanted = verifier.generate(torch.tensor([prompt]), max_new_tokens=14, do_sample=False, pad_token_id=0)[0]
    assert greedy_sequence(verifier, prompt, 14) == wanted.tolist()


@pytest.mark.parametrize("as_list", [True, False])
def test_greedy_stops_behind_a_stop_token(verifier: Any, sequence: list[int], as_list: bool) -> None:
    verifier.generation_config.eos_token_id = None
    whole = greedy_sequence(verifier, sequence[:6], 10)
    stop = whole[8]
    verifier.generation_config.eos_token_id = [VOCAB_SIZE - 1, stop] if as_list else stop
    ended = greedy_sequence(verifier, sequence[:6], 10)
    verifier.generation_config.eos_token_id = None
    assert ended[-1] == stop
    assert ended == whole[: len(ended)]
    assert stop not in ended[6:-1]
