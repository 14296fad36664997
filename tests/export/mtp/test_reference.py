"""The two slow references against the definition of what they stand for."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from export.graphs.feeds import FeedBuilder
from export.mtp.reference import FakeQuantizedHead, TransformersHead
from quant.dtypes import INT4, INT8, IntegerType
from quant.weights import Clip, QuantizedWeight, quantize_weight

from ..tiny import TinyHead, last_rows, random_state, run_torch, run_transformers

KEEP = np.array([0, 3, 5, 8, 106, 200, 299])


def chunked_weights(tiny: TinyHead, dtype: IntegerType) -> dict[str, QuantizedWeight]:
    """Weights as a graph with two output chunks stores them."""
    weights = {}
    for name, parameter in tiny.head.named_parameters():
        if parameter.dim() == 2:
            weights[name] = quantize_weight(parameter.detach(), dtype, Clip.MSE)
    rows = tiny.head.lm_head.weight.detach()[KEEP]
    del weights["lm_head.weight"]
    weights["lm_head.weight.kept.1"] = quantize_weight(rows[4:], dtype, Clip.MSE)
    weights["lm_head.weight.kept.0"] = quantize_weight(rows[:4], dtype, Clip.MSE)
    return weights


@pytest.mark.parametrize("dtype", [INT4, INT8])
def test_fake_quantised_head_is_the_head_with_dequantised_weights(tiny: TinyHead, dtype: IntegerType) -> None:
    weights = chunked_weights(tiny, dtype)
    rounded = copy.deepcopy(tiny.head)
    for name, parameter in rounded.named_parameters():
        if name in weights:
            parameter.data = weights[name].dequantize()
    kept = [weights[f"lm_head.weight.kept.{chunk}"].dequantize() for chunk in (0, 1)]
    rounded.lm_head.weight.data[torch.from_numpy(KEEP)] = torch.cat(kept)
    state = random_state(tiny.config, 11)
    builder = FeedBuilder(tiny.config, 8)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    result = FakeQuantizedHead(tiny.head, weights, KEEP, 8).run(feed)
    hidden, logits = run_torch(rounded, feed)
    np.testing.assert_allclose(result["next_hidden"].ravel(), hidden, atol=1e-5)
    np.testing.assert_allclose(result["logits_0"].ravel(), logits[KEEP], atol=1e-5)
    plain = run_torch(tiny.head, feed)[1][KEEP]
    assert np.abs(result["logits_0"].ravel() - plain).max() > 1e-4  # it does round


def test_fake_quantised_head_leaves_the_head_alone(tiny: TinyHead) -> None:
    before = {name: p.clone() for name, p in tiny.head.named_parameters()}
    FakeQuantizedHead(tiny.head, chunked_weights(tiny, INT4), KEEP, 8)
    for name, parameter in tiny.head.named_parameters():
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize("position", [1, 7, 30])
def test_transformers_head_sees_the_unmasked_rows_at_its_position(tiny: TinyHead, position: int) -> None:
    reference = TransformersHead(tiny.folder, KEEP)
    state = random_state(tiny.config, position)
    builder = FeedBuilder(tiny.config, 16)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    seen = last_rows(state, {"sliding": 8, "full": 16})
    for query in (position, position - 1):
        reference.position = query
        result = reference.run(feed)
        hidden, logits = run_transformers(tiny.model, seen, query)
        assert result["next_hidden"].shape == (1, 1, 1, hidden.size)
        np.testing.assert_allclose(result["next_hidden"].ravel(), hidden, atol=1e-5)
        np.testing.assert_allclose(result["logits_0"].ravel(), logits[KEEP], atol=1e-5)
