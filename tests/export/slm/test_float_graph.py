"""The float graphs against transformers' own forward of the same checkpoint: prompts, trees, padding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from export.engines.graph_io import joined_logits
from export.graphs.mtp import KINDS
from export.graphs.tree_feeds import RowTree, TreeFeedBuilder, softcapped
from export.passes.common import constant_shape
from export.slm.float_graph import build_graph
from export.slm.weights import coded_weights
from quant.errors import TokenIdError

from .builders import KEEP, PER_LAYER_VOCAB_SIZE, text
from .conftest import PREFILL_ROWS, ROWS, WINDOW, Tiny, largest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from export.slm.runner import SlmModel, SlmText

TOLERANCE = 1e-4
HOW = {True: "clipped", False: "free"}


def capped(tiny: Tiny, logits: np.ndarray) -> np.ndarray:
    return softcapped(logits, tiny.checkpoint.config.final_logit_softcapping)


def chunked_logits(session: SlmText, tokens: Sequence[int]) -> np.ndarray:
    """Raw logits of every position: the draft graph reads the whole text, a few tokens at a time."""
    logits = []
    for start in range(0, len(tokens), ROWS):
        chunk = tokens[start : start + ROWS]
        logits.append(session.draft(RowTree.chain(len(chunk)), chunk))
        session.cache.accept(range(len(chunk)))
    return np.concatenate(logits)


def assert_near(ours: np.ndarray, wanted: np.ndarray) -> None:
    assert largest(ours - wanted) <= TOLERANCE * largest(wanted)


def random_tree(rng: np.random.Generator, rows: int) -> RowTree:
    """Catch-up chain, then rows behind any row or behind the text itself."""
    caught_up = int(rng.integers(0, 3))
    parents: list[int | None] = [row - 1 if row else None for row in range(min(caught_up, rows))]
    while len(parents) < rows:
        parent = int(rng.integers(-1, len(parents)))
        parents.append(None if parent < 0 else parent)
    return RowTree(tuple(parents))


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("length", [1, 7, 8, 9, WINDOW])
def test_every_position_of_a_prompt(tiny: Tiny, float_model: Callable[..., SlmModel], length: int, clip: bool) -> None:
    """In chunks of 8, behind a sliding window of 8."""
    tokens = text(length, seed=length)
    wanted = tiny.reference.tree_logits([], RowTree.chain(length), tokens, KEEP, HOW[clip])  # type: ignore[arg-type]
    assert_near(capped(tiny, chunked_logits(float_model(clip).begin(), tokens)), wanted)


def test_clips_are_the_only_difference(tiny: Tiny, float_model: Callable[..., SlmModel]) -> None:
    with_clips, without = (chunked_logits(float_model(clip).begin(), text(20)) for clip in (True, False))
    assert largest(capped(tiny, with_clips) - capped(tiny, without)) > 0.1


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_trees(tiny: Tiny, float_model: Callable[..., SlmModel], seed: int, clip: bool) -> None:
    """Random trees of up to 8 rows, several of them at the root, behind a prompt of several prefill passes."""
    rng = np.random.default_rng(seed)
    prompt, tree = text(int(rng.integers(0, 20)), seed), random_tree(rng, int(rng.integers(2, ROWS + 1)))
    tokens = text(len(tree.parents), seed + 100)
    session = float_model(clip).begin()
    session.prefill(prompt)
    ours = capped(tiny, session.draft(tree, tokens))
    assert_near(ours, tiny.reference.tree_logits(prompt, tree, tokens, KEEP, HOW[clip]))  # type: ignore[arg-type]


def test_two_roots_and_the_path_between(tiny: Tiny, float_model: Callable[..., SlmModel]) -> None:
    """A row sees its ancestors and no other row: its logits are those of its own path alone."""
    prompt, tree, tokens = text(11), RowTree((None, None, 0, 1, 2, 2)), [1, 2, 3, 4, 5, 6]
    session = float_model().begin()
    session.prefill(prompt)
    logits = session.draft(tree, tokens)
    session.cache.roll_back(len(prompt))
    for row, path in enumerate(([1], [2], [1, 3], [2, 4], [1, 3, 5], [1, 3, 6])):
        alone = session.draft(RowTree.chain(len(path)), path)[-1]
        session.cache.roll_back(len(prompt))
        np.testing.assert_allclose(logits[row], alone, atol=1e-4)


def test_a_tree_in_two_passes(tiny: Tiny, float_model: Callable[..., SlmModel]) -> None:
    """The second pass reads the first one's rows from the window."""
    prompt, parents, tokens = text(9), (None, 0, 0, 1, 2, 3), [9, 8, 7, 6, 5, 4]
    session = float_model().begin()
    session.prefill(prompt)
    first = session.draft(RowTree(parents[:3]), tokens[:3])
    second = session.draft(RowTree(parents, stored=3), tokens[3:])
    wanted = tiny.reference.tree_logits(prompt, RowTree(parents), tokens, KEEP, "clipped")
    assert_near(capped(tiny, np.concatenate([first, second])), wanted)


@pytest.mark.parametrize("length", [3, PREFILL_ROWS, 3 * PREFILL_ROWS + 1, WINDOW])
def test_the_prefill_graph_fills_what_the_draft_graph_would(float_model: Callable[..., SlmModel], length: int) -> None:
    """It ends at the last layer that owns a cache; keys, values and what is drafted behind are the same."""
    prefilled, drafted = float_model().begin(), float_model().begin()
    prefilled.prefill(text(length))
    chunked_logits(drafted, text(length))
    for ours, theirs in zip(prefilled.cache.view().caches.values(), drafted.cache.view().caches.values(), strict=True):
        np.testing.assert_allclose(ours.keys, theirs.keys, atol=1e-5)
        np.testing.assert_allclose(ours.values, theirs.values, atol=1e-5)
    tree = RowTree((None, 0, 0))
    np.testing.assert_allclose(prefilled.draft(tree, [1, 2, 3]), drafted.draft(tree, [1, 2, 3]), atol=1e-4)


def test_the_prefill_graph_takes_and_makes_no_more_than_it_needs(float_model: Callable[..., SlmModel]) -> None:
    """Of the last owner (a full layer, the only one) it needs the new keys alone, so neither mask nor past of it."""
    inputs = set(float_model().prefill.inputs)
    assert inputs < set(float_model().draft.inputs)
    assert set(float_model().draft.inputs) - inputs == {"mask_full", "past_keys_2", "past_values_2"}


def test_padding_changes_nothing(tiny: Tiny, float_model: Callable[..., SlmModel]) -> None:
    """Whatever stands in padded rows, all is finite and the rows that count have the same bits."""
    model, tokens = float_model(), text(3)
    session = model.begin()
    session.prefill(text(9))
    builder = TreeFeedBuilder(tiny.checkpoint.config, ROWS, WINDOW)
    feed = builder.feed(RowTree.chain(3), *tiny.tables.rows(tokens), session.cache.view())
    clean, rng = model.draft.run(feed), np.random.default_rng(0)
    dirty = {name: array.copy() for name, array in feed.items()}
    for name, most in (
        ("embedding", 100),
        ("per_layer", 100),
        *((f"{f}_{k}", 1) for f in ("cos", "sin") for k in KINDS),
    ):
        dirty[name][:, :, 3:] = rng.uniform(-most, most, dirty[name][:, :, 3:].shape)
    result = model.draft.run(dirty)
    assert all(np.isfinite(array).all() for one in (clean, result) for array in one.values())
    for name, array in clean.items():
        of_rows = (..., slice(3)) if "keys" in name else (slice(None), slice(None), slice(3))
        np.testing.assert_array_equal(result[name][of_rows], array[of_rows])
        assert largest(result[name] - array) > 0


def test_a_padded_pass_equals_a_full_one(float_model: Callable[..., SlmModel]) -> None:
    """The first rows of a full chain see none of the later ones: they are what a padded pass gives."""
    padded, full = float_model().begin(), float_model().begin()
    for session in (padded, full):
        session.prefill(text(9))
    tokens = text(ROWS, seed=5)
    for rows in (1, 3, ROWS - 1):
        ours = padded.draft(RowTree.chain(rows), tokens[:rows])
        padded.cache.roll_back(9)
        wanted = full.draft(RowTree.chain(ROWS), tokens)[:rows]
        full.cache.roll_back(9)
        np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_logits_are_raw_and_come_in_chunks(tiny: Tiny, float_model: Callable[..., SlmModel]) -> None:
    """The softcap is the CPU's: raw logits go beyond it."""
    model = float_model()
    builder = TreeFeedBuilder(tiny.checkpoint.config, ROWS, WINDOW)
    feed = builder.feed(RowTree.chain(3), *tiny.tables.rows(text(3)), model.begin().cache.view())
    result = model.draft.run(feed)
    assert [result[f"logits_{chunk}"].shape[-1] for chunk in (0, 1)] == [160, 130]
    assert "logits_2" not in result
    assert largest(joined_logits(result)) > 5.0


@pytest.mark.parametrize("token", [-1, PER_LAYER_VOCAB_SIZE, 10_000])
def test_an_id_outside_a_table_is_an_error(float_model: Callable[..., SlmModel], token: int) -> None:
    session = float_model().begin()
    with pytest.raises(TokenIdError, match=f"token id {token} is not in the table"):
        session.draft(RowTree.chain(2), [1, token])
    with pytest.raises(TokenIdError, match=f"token id {token} is not in the table"):
        session.prefill([token])
    assert session.cache.view().count == 0


def test_no_weight_is_read_before_the_graph_is_written(tiny: Tiny) -> None:
    """So the memory of a build is that of what stays in floats: norms, scalars and the one projection."""
    reads: list[str] = []

    def counted(name: str, read: Callable[[], object]) -> Callable[[], object]:
        return lambda: reads.append(name) or read()  # type: ignore[func-returns-value]

    weights = {
        name: replace(weight, read=counted(name, weight.read))  # type: ignore[arg-type]
        for name, weight in coded_weights(tiny.checkpoint, KEEP, "int4").items()
    }
    graph = build_graph(tiny.checkpoint, weights, len(KEEP), ROWS, WINDOW, clip=True).graph
    assert reads == []
    sizes = {
        n: math.prod(constant_shape(v)) for n, v in graph.initializers.items() if not n.endswith((".codes", ".zero"))
    }
    assert sizes.pop("per_layer_model_projection.weight") == 6 * 16 * 32
    assert max(sizes.values()) <= len(KEEP)
    first = next(iter(weights))
    tensor = graph.initializers[f"{first}.codes"].const_value
    assert tensor is not None
    assert tensor.numpy().shape == weights[first].shape[::-1]
    assert reads == [first]
