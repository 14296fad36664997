"""Windows, masks and positions: which verified rows a drafting step sees."""

from __future__ import annotations

import numpy as np
import pytest

from export.graphs.feeds import MASKED, FeedBuilder
from export.graphs.mtp import KINDS, MtpInputs
from export.graphs.rope import inverse_frequencies, signed_rotation

from ..tiny import SLIDING_WINDOW, TinyHead, last_rows, random_state, run_torch, run_transformers


@pytest.mark.parametrize("position", [1, 5, 8, 9, 15, 16, 17, 40])
@pytest.mark.parametrize("window", [4, 8, 16])
def test_equals_transformers_for_every_fill(tiny: TinyHead, window: int, position: int) -> None:
    """Graph windows smaller than, equal to and larger than the sliding window of 8; prompts from one row on."""
    state = random_state(tiny.config, position)
    builder = FeedBuilder(tiny.config, window)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    assert {name: array.shape for name, array in feed.items()} == MtpInputs(tiny.config, window).shapes()
    seen = last_rows(state, {"sliding": min(window, SLIDING_WINDOW), "full": window})
    wanted = run_transformers(tiny.model, seen, position)
    for ours, theirs in zip(run_torch(tiny.head, feed), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("position", range(6, 19))
def test_sliding_layers_see_rows_p_minus_w_to_p_minus_1(tiny: TinyHead, position: int) -> None:
    """Every key holds its own position, so the unmasked slots name the visible rows; the position grows past W."""
    builder = FeedBuilder(tiny.config, 16)
    state = random_state(tiny.config, position)
    for kind in KINDS:
        state.keys[kind][...] = np.arange(position, dtype=np.float32)[:, None]
    context = builder.context(state)
    for kind, window in (("sliding", 8), ("full", 16)):
        visible = context[f"keys_{kind}"][0, 0, 0][context[f"mask_{kind}"][0, 0, 0] == 0.0]
        assert visible.tolist() == list(range(max(0, position - window), position))
        rope = next(rope for rope in tiny.config.ropes if rope.kind == f"{kind}_attention")
        cos, sin = signed_rotation(inverse_frequencies(rope, context[f"cos_{kind}"].shape[-1]), position)
        np.testing.assert_array_equal(context[f"cos_{kind}"], cos)
        np.testing.assert_array_equal(context[f"sin_{kind}"], sin)


@pytest.mark.parametrize(("row", "seen"), [(11, False), (12, True), (19, True)])
def test_first_row_of_the_window(tiny: TinyHead, row: int, seen: bool) -> None:
    """At p = 20 with W = 8, row 12 is the oldest that a sliding layer reads."""
    builder = FeedBuilder(tiny.config, 32)
    results = []
    for change in (0.0, 3.0):
        state = random_state(tiny.config, 20)
        state.values["sliding"][:, row] += change
        feed = builder.step(builder.context(state), state.embedding, state.hidden)
        results.append(run_torch(tiny.head, feed)[1])
    assert bool(np.abs(results[0] - results[1]).max() > 1e-3) is seen


@pytest.mark.parametrize("position", [1, 5, 12])
def test_garbage_in_masked_slots_changes_nothing(tiny: TinyHead, position: int) -> None:
    builder = FeedBuilder(tiny.config, 16)
    state = random_state(tiny.config, position)
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    dirty = {name: array.copy() for name, array in feed.items()}
    rng = np.random.default_rng(3)
    for kind in KINDS:
        masked = feed[f"mask_{kind}"][0, 0, 0] == MASKED
        assert masked.any()
        for name in (f"keys_{kind}", f"values_{kind}"):
            slots = dirty[name] if name.startswith("values") else dirty[name].swapaxes(2, 3)
            slots[:, :, masked] = rng.standard_normal(slots[:, :, masked].shape)
    clean_result, dirty_result = run_torch(tiny.head, feed), run_torch(tiny.head, dirty)
    np.testing.assert_array_equal(clean_result[0], dirty_result[0])
    np.testing.assert_array_equal(clean_result[1], dirty_result[1])


def test_rule_p_minus_1_is_one_position_back(tiny: TinyHead) -> None:
    state, before = random_state(tiny.config, 7), random_state(tiny.config, 6)
    shifted, plain = FeedBuilder(tiny.config, 8, "p-1").context(state), FeedBuilder(tiny.config, 8).context(before)
    for kind in KINDS:
        np.testing.assert_array_equal(shifted[f"cos_{kind}"], plain[f"cos_{kind}"])
        np.testing.assert_array_equal(shifted[f"sin_{kind}"], plain[f"sin_{kind}"])
        # Same rows under both rules: only the query turns.
        assert (shifted[f"mask_{kind}"] == 0).sum() == 7


def test_builder_leaves_the_state_alone(tiny: TinyHead) -> None:
    state, fresh = random_state(tiny.config, 5), random_state(tiny.config, 5)
    context = FeedBuilder(tiny.config, 8).context(state)
    context["keys_full"][...] = 99.0
    np.testing.assert_array_equal(state.keys["full"], fresh.keys["full"])
