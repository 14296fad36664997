"""The drafters in torch against transformers, and what a window's empty slots may not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from calibration.states import greedy_sequence, record_states
from calibration.verifier import load_verifier
from export.checkpoint.mtp import read_mtp_checkpoint
from export.checkpoint.slm import read_slm_checkpoint
from export.checkpoint.slm_tables import per_layer_table, token_table
from export.graphs.feeds import MASKED, FeedBuilder
from export.graphs.mtp import load_mtp_head
from export.graphs.slm import SlmInputs
from export.graphs.tree_feeds import RowTree, softcapped
from export.mtp.reference import FakeQuantizedHead, TransformersHead
from export.slm.reference import TransformersSlm
from export.slm.runner import SlmModel, SlmTables
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.engines import TimedGraph, TorchMtp, TorchSlm
from hyco_npu.decode.onnx_engine import onnx_mtp, onnx_slm
from hyco_npu.decode.slots import without_empty_slots
from hyco_npu.family import MTP_DIR, SLM_DIR, VERIFIER_DIR
from quant.dtypes import INT4
from quant.weights import Clip, quantize_weight

if TYPE_CHECKING:
    from calibration.states import HeadState

KEEP = np.arange(3, 2048, 5)
WINDOW = 256


@pytest.fixture(scope="module")
def states() -> list[HeadState]:
    """States of two texts of the family's verifier, near the start and beyond the sliding window of 64."""
    verifier = load_verifier(VERIFIER_DIR)
    texts = [greedy_sequence(verifier, [2, *range(300, 310 + seed)], 90) for seed in range(2)]
    return list(record_states(verifier, texts, [(13, len(text) - 1) for text in texts], WINDOW))


def test_an_unrounded_head_is_that_of_transformers(states: list[HeadState]) -> None:
    reference = TransformersHead(MTP_DIR, KEEP)
    checkpoint = read_mtp_checkpoint(MTP_DIR)
    ours, feeds = TorchMtp(checkpoint, KEEP, bits=16), FeedBuilder(checkpoint.config, WINDOW)
    for state in states:
        feed = feeds.step(feeds.context(state), state.embedding, state.hidden)
        reference.position = state.position
        wanted, got = reference.run(feed), ours.run(feed)
        assert wanted.keys() == got.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-4 * max(1, np.abs(value).max()))


def test_a_head_of_four_bits_is_the_fake_quantised_one(states: list[HeadState]) -> None:
    checkpoint = read_mtp_checkpoint(MTP_DIR)
    head = load_mtp_head(checkpoint.config, checkpoint.state_dict())
    kept = head.lm_head.weight[torch.tensor(KEEP)]
    weights = {
        name: quantize_weight(weight, INT4, Clip.MSE)
        for name, weight in head.named_parameters()
        if weight.ndim == 2 and name != "lm_head.weight"
    } | {"lm_head.weight.kept.0": quantize_weight(kept, INT4, Clip.MSE)}
    reference = FakeQuantizedHead(head, weights, KEEP, WINDOW)
    ours, feeds = TorchMtp(checkpoint, KEEP, bits=4), FeedBuilder(checkpoint.config, WINDOW)
    feed = feeds.step(feeds.context(states[0]), states[0].embedding, states[0].hidden)
    np.testing.assert_allclose(ours.run(feed)["logits_0"], reference.run(feed)["logits_0"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("window", [128, 1024], ids=["few empty slots", "many"])
def test_the_slm_is_that_of_transformers_on_a_tree(window: int) -> None:
    checkpoint = read_slm_checkpoint(SLM_DIR)
    text, tokens = [2, *range(400, 480)], [7, 30, 31, 320, 900, 77]
    tree = RowTree((None, 0, 0, 1, 3, 2))
    wanted = TransformersSlm(checkpoint).tree_logits(text, tree, tokens, KEEP, "clipped")
    draft = TorchSlm(checkpoint, KEEP, 33)
    tables = SlmTables(token_table(checkpoint), per_layer_table(checkpoint))
    prefill = draft.with_rows(16)
    begun = SlmModel(checkpoint.config, tables, draft, 33, prefill, 16, window, "float32").begin()
    begun.prefill(text)
    logits = softcapped(begun.draft(tree, tokens), checkpoint.config.final_logit_softcapping)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


def test_a_graphs_time_is_booked_to_its_phase_and_not_to_the_one_around() -> None:
    class Slow:
        inputs = ("x",)

        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            torch.ones(400, 400) @ torch.ones(400, 400)
            return feed

    clock = Clock()
    graph = TimedGraph(Slow(), clock, "device.slm")
    assert graph.inputs == ("x",)
    with clock.phase("device.feeds"):
        graph.run({})
    phases = clock.take()
    assert phases["device.slm"] > phases["device.feeds"] > 0


def test_a_traced_head_is_the_module_at_any_window(states: list[HeadState]) -> None:
    checkpoint = read_mtp_checkpoint(MTP_DIR)
    head = TorchMtp(checkpoint, KEEP, bits=4)
    traced = onnx_mtp(head)
    for window in (64, 100, WINDOW):
        feeds = FeedBuilder(checkpoint.config, window)
        for state in states:
            feed = feeds.step(feeds.context(state), state.embedding, state.hidden)
            for name, value in head.run(feed).items():
                tolerance = 1e-4 * max(1, np.abs(value).max())
                np.testing.assert_allclose(traced.run(feed)[name], value, rtol=0, atol=tolerance)


def test_a_traced_slm_is_the_module_at_any_window() -> None:
    slm = TorchSlm(read_slm_checkpoint(SLM_DIR), KEEP, 5)
    traced = onnx_slm(slm)
    rng = np.random.default_rng(0)
    for window in (40, 100, 333):
        shapes = SlmInputs(slm.module.config, 5, window).shapes()
        feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        feed |= {name: np.zeros_like(array) for name, array in feed.items() if name.startswith("mask_")}
        found = traced.run(feed)
        for name, value in slm.run(feed).items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4 * max(1, np.abs(value).max()))


def test_only_slots_behind_the_last_one_seen_are_left_out() -> None:
    rng, slots, rows = np.random.default_rng(0), 200, 3
    mask = np.full((1, 1, rows, slots + rows), MASKED, np.float32)
    mask[0, 0, 1, 70], mask[..., slots:] = 0.0, 0.0
    keys, values = rng.random((1, 2, 4, slots)), rng.random((1, 2, slots, 4))
    cut = without_empty_slots({"mask_full": mask, "past_keys_2": keys, "past_values_2": values, "x": keys}, rows)
    np.testing.assert_array_equal(cut["past_keys_2"], keys[..., :128])
    np.testing.assert_array_equal(cut["past_values_2"], values[:, :, :128])
    np.testing.assert_array_equal(cut["mask_full"], np.concatenate([mask[..., :128], mask[..., slots:]], axis=-1))
    assert cut["x"] is keys
