"""The verifier of one text against plain transformers: logits, caches, and what the head is given."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from calibration.states import HeadState, record_states
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.tree import DraftTree
from hyco_npu.decode.verifier import TextVerifier, VerifierModel, VerifierOptions
from tests.hyco_npu.decode.tiny_models import (
    GEMMA4_NAMES,
    OTHER_NAMES,
    WINDOW,
    plain_cache,
    plain_logits,
    random_ids,
    random_tree,
    tiny_model,
    tree_logits,
)

if TYPE_CHECKING:
    from hyco_npu.decode.protocols import HeadUpdate

NAMES = (*GEMMA4_NAMES, *OTHER_NAMES)
TOLERANCE = {"rtol": 0, "atol": 1e-4}


@cache
def model_of(name: str) -> Any:
    """One of each kind for all tests."""
    return tiny_model(name)


def started(model: Any, prompt: list[int], first: int, options: VerifierOptions | None = None) -> TextVerifier:
    """A text with a prompt and the first token behind it."""
    text = VerifierModel(model, options).begin()
    text.prefill(prompt)
    text.commit((), first)
    return text


def assert_cache_is(text: TextVerifier, model: Any, ids: list[int]) -> None:
    """The text's rows are those of `ids`, no more and no fewer."""
    assert text.cache.committed == len(ids)
    for layer, (keys, values) in enumerate(plain_cache(model, ids)):
        own_keys, own_values = text.cache.rows(layer, 0, text.cache.committed)
        np.testing.assert_allclose(own_keys.numpy(), keys, **TOLERANCE)
        np.testing.assert_allclose(own_values.numpy(), values, **TOLERANCE)


def random_path(rng: np.random.Generator, tree: DraftTree) -> tuple[int, ...]:
    """The path to any row, the root's (nothing accepted) among them."""
    return tree.path(int(rng.integers(0, tree.rows)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seed", "length"), [(0, 1), (1, 5), (2, WINDOW), (3, 19)])
def test_tree_logits_equal_each_path_on_its_own(name: str, seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    model = model_of(name)
    *prompt, first = random_ids(rng, length + 1)
    tree = random_tree(rng, first, nodes=14)
    assert max(tree.depths) > 3, "the tree is to straddle the window"
    logits = started(model, prompt, first).verify(tree)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, tree_logits(model, [*prompt, first], tree), **TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(2))
def test_rounds_in_a_row_keep_what_recomputation_gives(name: str, seed: int) -> None:
    rng = np.random.default_rng(10 + seed)
    model = model_of(name)
    ids = random_ids(rng, 6)
    text = started(model, ids[:-1], ids[-1])
    for _ in range(5):
        tree = random_tree(rng, ids[-1], nodes=9)
        np.testing.assert_allclose(text.verify(tree), tree_logits(model, ids, tree), **TOLERANCE)
        rows = random_path(rng, tree)
        ids += [*(tree.token_ids[row] for row in rows), *random_ids(rng, 1)]
        text.commit(rows, ids[-1])
        assert text.length == len(ids)
        assert_cache_is(text, model, ids[:-1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefill_rows", [1, 5, 512])
def test_prefill_gives_the_last_rows_logits_however_it_is_cut(name: str, prefill_rows: int) -> None:
    model = model_of(name)
    prompt = random_ids(np.random.default_rng(4), 17)
    text = VerifierModel(model, VerifierOptions(prefill_rows=prefill_rows)).begin()
    np.testing.assert_allclose(text.prefill(prompt), plain_logits(model, prompt)[-1:], **TOLERANCE)
    text.commit((), 9)
    assert_cache_is(text, model, prompt)


@pytest.mark.parametrize("name", ["gemma4-moe", "gemma3", "llama", "qwen3-sliding"])
def test_attention_kernels_agree(name: str) -> None:
    model = tiny_model(name)
    rng = np.random.default_rng(5)
    *prompt, first = random_ids(rng, 12)
    tree = random_tree(rng, first, nodes=10)
    wanted = tree_logits(model, [*prompt, first], tree)
    model.set_attn_implementation("eager")
    np.testing.assert_allclose(started(model, prompt, first).verify(tree), wanted, **TOLERANCE)


@pytest.mark.parametrize("name", ["gemma4-moe", "llama"])
def test_a_cut_text_keeps_no_row_of_the_tail(name: str) -> None:
    """The path [5, 106, 9] was accepted and the text ends on 106: no row for 106, none for 9."""
    model = model_of(name)
    prompt = random_ids(np.random.default_rng(6), 11)
    text = started(model, prompt, 40)
    tree = DraftTree.chain([40, 5, 106, 9], "test")
    text.verify(tree)
    text.commit((1,), 106)
    assert_cache_is(text, model, [*prompt, 40, 5])
    assert text.length == len(prompt) + 3


@pytest.mark.parametrize("name", NAMES)
def test_a_further_turn_runs_only_what_is_new(name: str) -> None:
    model = model_of(name)
    rng = np.random.default_rng(7)
    prompt, turn = random_ids(rng, 9), random_ids(rng, 4)
    text = started(model, prompt, 40)
    text.verify(DraftTree.chain([40, 50, 60], "test"))
    text.commit((1, 2), 106)
    before = text.cache.committed
    whole = [*prompt, 40, 50, 60, 106, *turn]
    np.testing.assert_allclose(text.prefill(turn), plain_logits(model, whole)[-1:], **TOLERANCE)
    assert text.cache.filled - before == 1 + len(turn)  # the last emitted token had no row
    text.commit((), 70)
    assert_cache_is(text, model, whole)
    tree = random_tree(rng, 70, nodes=6)
    np.testing.assert_allclose(text.verify(tree), tree_logits(model, [*whole, 70], tree), **TOLERANCE)


def joined(updates: list[HeadUpdate]) -> dict[str, list[np.ndarray]]:
    """Keys and values of all updates, one behind the other."""
    return {
        kind: [np.concatenate([rows[kind] for rows in side], axis=1) for side in zip(*pairs, strict=True)]
        for kind in ("sliding", "full")
        for pairs in [[(update.keys, update.values) for update in updates]]
    }


def assert_updates_are(updates: list[HeadUpdate], state: HeadState) -> None:
    """All updates together are the state of a text that was never drafted."""
    last = updates[-1]
    np.testing.assert_allclose(last.hidden, state.hidden, **TOLERANCE)
    np.testing.assert_allclose(last.embedding, state.embedding, **TOLERANCE)
    for kind, (keys, values) in joined(updates).items():
        np.testing.assert_allclose(keys, state.keys[kind], **TOLERANCE)
        np.testing.assert_allclose(values, state.values[kind], **TOLERANCE)


@pytest.mark.parametrize("name", GEMMA4_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_updates_of_the_head_are_the_final_texts_states(name: str, seed: int) -> None:
    rng = np.random.default_rng(20 + seed)
    model = model_of(name)
    ids = random_ids(rng, 12)
    text = VerifierModel(model).begin()
    text.prefill(ids[:-1])
    updates = [text.commit((), ids[-1])]
    for turn in range(6):
        if turn == 3:
            asked = random_ids(rng, 3)
            text.prefill(asked)
            rows: tuple[int, ...] = ()
            ids += asked
        else:
            tree = random_tree(rng, ids[-1], nodes=9)
            text.verify(tree)
            rows = random_path(rng, tree)
            ids += [tree.token_ids[row] for row in rows]
        ids += random_ids(rng, 1)
        updates.append(text.commit(rows, ids[-1]))
        count = len(ids) - 1
        given = [update for update in updates if update is not None]
        assert len(given) == len(updates)
        assert_updates_are(given, next(record_states(model, [ids], [[count]], window=count)))


def test_an_update_is_a_copy_and_holds_float32() -> None:
    rng = np.random.default_rng(8)
    text = VerifierModel(model_of("gemma4-moe")).begin()
    text.prefill(random_ids(rng, 10))
    update = text.commit((), 40)
    assert update is not None
    arrays = [update.hidden, update.embedding, *update.keys.values(), *update.values.values()]
    held = [array.copy() for array in arrays]
    for kind, layer in text.owner.head_layers.items():
        for own, given in zip(text.cache.rows(layer, 0, 10), (update.keys, update.values), strict=True):
            assert not np.shares_memory(own.numpy(), given[kind])
    text.verify(random_tree(rng, 40, nodes=5))
    text.commit((), 41)
    for array, before in zip(arrays, held, strict=True):
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, before)


def test_an_update_holds_the_last_rows_of_the_window() -> None:
    model = model_of("gemma4-moe")
    ids = random_ids(np.random.default_rng(9), 15)
    text = VerifierModel(model, VerifierOptions(window=6)).begin()
    text.prefill(ids[:-1])
    update = text.commit((), ids[-1])
    assert update is not None
    assert_updates_are([update], next(record_states(model, [ids], [[14]], window=6)))
    assert update.keys["full"].shape[1] == 6


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_models_without_a_head_give_no_update(name: str) -> None:
    text = VerifierModel(model_of(name)).begin()
    text.prefill([7, 8, 9])
    assert text.commit((), 40) is None
    text.verify(DraftTree.root_only(40))
    assert text.commit((), 41) is None


def test_windows_and_positions_go_on_past_the_window() -> None:
    """Window 8, prompt 6, then single tokens: sliding layers show the query at p the keys p-7..p, full ones all."""
    model = tiny_model("gemma4-moe")
    seen: list[dict[str, Any]] = []
    model.model.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs), with_kwargs=True)
    text = started(model, random_ids(np.random.default_rng(0), 6), 40)
    for p in range(6, 19):
        text.verify(DraftTree.root_only(40))
        text.commit((), 40)
        assert seen[-1]["position_ids"].tolist() == [[p]]
        visible = {}
        for kind, mask in seen[-1]["attention_mask"].items():
            keys = range(p + 1 - mask.shape[-1], p + 1)  # a layer's keys end with the query's own
            visible[kind] = [key for key, value in zip(keys, mask[0, 0, 0].tolist(), strict=True) if value == 0]
        assert visible["sliding_attention"] == list(range(max(0, p - 7), p + 1))
        assert visible["full_attention"] == list(range(p + 1))


@pytest.mark.parametrize(
    ("named", "stop_ids"), [(106, {106}), ([1, 106, 50], {1, 106, 50}), (None, set())], ids=["int", "list", "absent"]
)
def test_stop_ids_are_all_that_the_generation_config_names(named: int | list[int] | None, stop_ids: set[int]) -> None:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = named
    assert VerifierModel(model).begin().stop_ids == stop_ids


def test_max_positions_are_the_configs() -> None:
    assert VerifierModel(model_of("gemma4-moe")).begin().max_positions == 256


@pytest.mark.parametrize("name", ["gemma4-moe", "llama"])
def test_nan_logits_are_passed_through(name: str) -> None:
    model: Any = tiny_model(name)
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    text = VerifierModel(model).begin()
    assert np.isnan(text.prefill([7, 8, 9])).all()
    text.commit((), 40)
    assert np.isnan(text.verify(DraftTree.chain([40, 41], "test"))).all()


def test_bfloat16_models_give_finite_float32_logits() -> None:
    rng = np.random.default_rng(11)
    text = started(tiny_model("gemma4-moe").bfloat16(), random_ids(rng, 20), 40)
    logits = text.verify(random_tree(rng, 40, nodes=12))
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()


def test_a_pass_without_commit_is_forgotten() -> None:
    model = model_of("gemma4-moe")
    rng = np.random.default_rng(12)
    prompt = random_ids(rng, 9)
    text = started(model, prompt, 40)
    text.verify(random_tree(rng, 40, nodes=7))
    tree = random_tree(rng, 40, nodes=4)
    np.testing.assert_allclose(text.verify(tree), tree_logits(model, [*prompt, 40], tree), **TOLERANCE)
    text.commit((), 41)
    assert_cache_is(text, model, [*prompt, 40])


def test_wrong_calls_are_named() -> None:
    text = VerifierModel(model_of("llama")).begin()
    with pytest.raises(DecodeError, match=r"root is token 40.*last one emitted is None"):
        text.verify(DraftTree.root_only(40))
    with pytest.raises(DecodeError, match="no pass to commit"):
        text.commit((), 40)
    with pytest.raises(DecodeError, match="0 tokens"):
        text.prefill([])
    text.prefill([7, 8])
    with pytest.raises(DecodeError, match="no path"):
        text.commit((1,), 40)
    text.commit((), 40)
    with pytest.raises(DecodeError, match=r"root is token 41.*last one emitted is 40"):
        text.verify(DraftTree.root_only(41))
    text.verify(DraftTree((40, 50, 60), (None, 0, 0), (0.0,) * 3, ("root", "a", "a")))
    for rows in ((1, 2), (0, 1)):
        with pytest.raises(DecodeError, match="no path"):
            text.commit(rows, 41)
    assert text.length == 3


def test_attention_that_takes_no_masks_is_refused() -> None:
    model = tiny_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(DecodeError, match="'flash_attention_2', which takes no tree masks"):
        VerifierModel(model)


def test_layers_that_are_neither_full_nor_sliding_are_refused() -> None:
    model: Any = tiny_model("llama")
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(DecodeError, match="'chunked_attention'"):
        VerifierModel(model)


@pytest.mark.parametrize("wrong", [{"window": 0}, {"prefill_rows": 0}])
def test_options_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(DecodeError, match="must be 1 or more"):
        replace(VerifierOptions(), **wrong)
