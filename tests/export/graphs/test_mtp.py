"""The static head against transformers' Gemma4AssistantForCausalLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from export.checkpoint.mtp import read_mtp_checkpoint
from export.graphs.feeds import FeedBuilder, PositionRule
from export.graphs.mtp import MtpHead, MtpInputs, load_mtp_head
from export.mtp.reference import TransformersHead

from ..checkpoint.builders import assistant_config, write_assistant
from ..tiny import BACKBONE, SIZES, VOCAB_SIZE, TinyHead, random_state, run_torch, run_transformers, tiny_head

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 1e-4
WINDOW = 8


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_k_eq_v": False},
        {"num_key_value_heads": 4, "num_global_key_value_heads": 2},
        {"final_logit_softcapping": None, "rms_norm_eps": 1e-2},
        {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
        },
    ],
    ids=["k_eq_v", "no_k_eq_v", "more_kv_heads", "no_softcap", "two_layers"],
)
@pytest.mark.parametrize(("rule", "offset"), [("p", 0), ("p-1", 1)])
def test_equals_transformers(tmp_path: Path, changes: dict[str, Any], rule: PositionRule, offset: int) -> None:
    tiny = tiny_head(tmp_path, **changes)
    state = random_state(tiny.config, 6)
    builder = FeedBuilder(tiny.config, WINDOW, rule)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    hidden, logits = run_torch(tiny.head, feed)
    wanted_hidden, wanted_logits = run_transformers(tiny.model, state, 6 - offset)
    assert np.abs(hidden - wanted_hidden).max() <= TOLERANCE
    assert np.abs(logits - wanted_logits).max() <= TOLERANCE
    assert logits.max() > 1.0  # raw logits: the configured softcap of 0.5 is not applied, as in transformers


def test_position_matters(tiny: TinyHead) -> None:
    """Otherwise the two rules of the test above would prove nothing."""
    state = random_state(tiny.config, 6)
    apart = run_transformers(tiny.model, state, 6)[1] - run_transformers(tiny.model, state, 5)[1]
    assert np.abs(apart).max() > 100 * TOLERANCE


@pytest.mark.parametrize("layer", range(4))
def test_every_layer_scalar_counts(tmp_path: Path, layer: int) -> None:
    # The norm behind the last layer undoes its scalar, but for a large epsilon.
    tiny, other = (tiny_head(tmp_path / name, rms_norm_eps=0.1) for name in "ab")
    state = random_state(tiny.config, 6)
    builder = FeedBuilder(tiny.config, WINDOW)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    for module in (other.model.model, other.head):
        module.layers[layer].layer_scalar.mul_(2.0)
    before, after = run_torch(tiny.head, feed)[1], run_torch(other.head, feed)[1]
    assert np.abs(after - before).max() > 100 * TOLERANCE
    assert np.abs(after - run_transformers(other.model, state, 6)[1]).max() <= TOLERANCE


@pytest.mark.parametrize("weight", [0.3, 1.3, 2.3])
def test_constant_norms(tmp_path: Path, weight: float) -> None:
    tiny = tiny_head(tmp_path)
    for module in (tiny.model, tiny.head):
        for name, tensor in module.state_dict().items():
            if "norm" in name:
                tensor.fill_(weight)
    state = random_state(tiny.config, 6)
    builder = FeedBuilder(tiny.config, WINDOW)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    hidden, logits = run_torch(tiny.head, feed)
    wanted_hidden, wanted_logits = run_transformers(tiny.model, state, 6)
    np.testing.assert_allclose(hidden, wanted_hidden, atol=TOLERANCE)
    np.testing.assert_allclose(logits, wanted_logits, atol=TOLERANCE)


def test_many_rows_equal_single_rows(tiny: TinyHead) -> None:
    builder = FeedBuilder(tiny.config, 32)
    states = [random_state(tiny.config, position, seed=7) for position in (20, 9, 13)]
    # One sequence, several rows: the keys of the longest, a mask and a position of each row's own.
    contexts = [builder.context(state) for state in states]
    feed = {name: array for name, array in contexts[0].items() if name.startswith(("keys", "values"))}
    for kind in ("sliding", "full"):
        for name in (f"mask_{kind}", f"cos_{kind}", f"sin_{kind}"):
            feed[name] = np.concatenate([context[name] for context in contexts], axis=2)
    for name in ("embedding", "hidden"):
        feed[name] = np.stack([getattr(state, name) for state in states])[None, None]
    with torch.no_grad():
        hidden, logits = tiny.head(**{name: torch.from_numpy(array) for name, array in feed.items()})
    assert hidden.shape == (1, 1, 3, BACKBONE)
    assert logits.shape == (1, 1, 3, VOCAB_SIZE)
    for row, state in enumerate(states):
        rows = {name: array[:, :, row : row + 1] for name, array in feed.items() if name[:4] not in ("keys", "valu")}
        single = run_torch(tiny.head, {**feed, **rows})
        np.testing.assert_allclose(hidden[0, 0, row].numpy(), single[0], atol=1e-5)
        np.testing.assert_allclose(logits[0, 0, row].numpy(), single[1], atol=1e-5)
        visible = {kind: states[0].keys[kind][:, : state.position] for kind in state.keys}
        values = {kind: states[0].values[kind][:, : state.position] for kind in state.keys}
        sliding = tiny.config.sliding_window
        visible["sliding"], values["sliding"] = visible["sliding"][:, -sliding:], values["sliding"][:, -sliding:]
        reference = type(state)(0, state.position, state.embedding, state.hidden, visible, values)
        wanted = run_transformers(tiny.model, reference, state.position)
        np.testing.assert_allclose(single[1], wanted[1], atol=TOLERANCE)


def test_batch_of_sequences_equals_single_ones(tiny: TinyHead) -> None:
    builder = FeedBuilder(tiny.config, 16)
    feeds = []
    for seed in range(3):
        state = random_state(tiny.config, 5 + seed, seed)
        feeds.append(builder.step(builder.context(state), state.embedding, state.hidden))
    with torch.no_grad():
        hidden, logits = tiny.head(
            **{name: torch.from_numpy(np.concatenate([feed[name] for feed in feeds])) for name in feeds[0]}
        )
    for index, feed in enumerate(feeds):
        single = run_torch(tiny.head, feed)
        np.testing.assert_allclose(hidden[index].numpy().ravel(), single[0], atol=1e-5)
        np.testing.assert_allclose(logits[index].numpy().ravel(), single[1], atol=1e-5)


def test_input_order_is_the_forward_signature(tiny: TinyHead) -> None:
    names = MtpHead.forward.__code__.co_varnames[1 : MtpHead.forward.__code__.co_argcount]
    assert tuple(MtpInputs(tiny.config, 8).shapes()) == names


def test_load_refuses_missing_and_extra_tensors(tiny: TinyHead) -> None:
    state = {f"model.{n}" if not n.startswith(("p", "lm")) else n: t for n, t in tiny.head.state_dict().items()}
    state["model.embed_tokens.weight"] = state.pop("lm_head.weight")
    load_mtp_head(tiny.config, state)
    with pytest.raises(RuntimeError, match=r"Unexpected.*extra"):
        load_mtp_head(tiny.config, {**state, "model.extra.weight": torch.zeros(1)})
    del state["model.layers.2.layer_scalar"]
    with pytest.raises(RuntimeError, match=r"Missing.*layers\.2\.layer_scalar"):
        load_mtp_head(tiny.config, state)


def test_a_centroid_head_is_scored_densely(tmp_path: Path) -> None:
    """Where transformers' centroid head scores a token at all, the static head gives the same logit."""
    config = assistant_config(
        {**SIZES}, backbone_hidden_size=BACKBONE, use_ordered_embeddings=True, num_centroids=10,
        centroid_intermediate_top_k=3,
    )  # fmt: skip
    model = write_assistant(tmp_path, config, torch.float32)
    checkpoint = read_mtp_checkpoint(tmp_path)
    head = load_mtp_head(checkpoint.config, checkpoint.state_dict())
    state = random_state(checkpoint.config, 6)
    builder = FeedBuilder(checkpoint.config, WINDOW)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    hidden, logits = run_torch(head, feed)
    wanted_hidden, sparse = run_transformers(model, state, 6)
    assert np.abs(hidden - wanted_hidden).max() <= TOLERANCE
    scored = sparse > sparse.min()  # the others are filled with the lowest score minus 1
    assert scored.sum() == VOCAB_SIZE // 10 * 3
    assert np.abs(logits - sparse)[scored].max() <= TOLERANCE
    # The reference of the export is the dense product too.
    reference = TransformersHead(tmp_path, np.arange(VOCAB_SIZE))
    reference.position = 6
    assert np.abs(reference.run(feed)["logits_0"].ravel() - logits).max() <= TOLERANCE
