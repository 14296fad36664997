"""Masks, positions and padding of tree passes: by brute force, and by the logits of every path in transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

from export.errors import ExportError
from export.graphs.feeds import MASKED
from export.graphs.slm import SlmInputs, cache_shapes
from export.graphs.tree_feeds import RowTree, TreeFeedBuilder, softcapped
from export.kv_window import KvRows, KvWindow

from ..tiny_slm import SLIDING_WINDOW, VOCAB_SIZE, Session, TinySlm, new_rows, tiny_slm, token_inputs, torch_runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from export.engines.graph_io import Feed

TOLERANCE = 1e-4
# Chain of four with siblings at depths 1 and 2, as a drafting round has it, and a second root beside it.
ROUND = RowTree((None, 0, 1, 2, 3, 0, 1, None))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinySlm:
    return tiny_slm(tmp_path_factory.mktemp("slm"))


def text(length: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(VOCAB_SIZE, size=length)]


def path_of(tree: RowTree, row: int) -> list[int]:
    """Rows from the tree's first level down to `row`, by walking up."""
    path: list[int] = []
    current: int | None = row
    while current is not None:
        path.append(current)
        current = tree.parents[current]
    return path[::-1]


def random_tree(rows: int, seed: int) -> RowTree:
    rng = np.random.default_rng(seed)
    drawn = [int(rng.integers(-1, row)) if row else -1 for row in range(rows)]
    return RowTree(tuple(None if parent < 0 else parent for parent in drawn))


def filled(tiny: TinySlm, tokens: int, window: int) -> KvWindow:
    """A window whose keys and values hold their position in every channel."""
    cache = KvWindow(cache_shapes(tiny.config), window)
    for position in range(tokens):
        append(cache, [position])
        cache.accept([0])
    return cache


def append(cache: KvWindow, positions: Sequence[int]) -> None:
    numbers, rows = np.asarray(positions, np.float32), {}
    for owner, slots in cache.view().caches.items():
        _, heads, dim, _ = slots.keys.shape
        keys = np.broadcast_to(numbers, (1, heads, dim, len(positions)))
        rows[owner] = KvRows(keys, keys.swapaxes(2, 3))
    cache.append(rows, positions)


def seen(mask: np.ndarray, row: int) -> set[int]:
    return set(np.flatnonzero(mask[0, 0, row] == 0.0).tolist())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_masks_equal_brute_force(tiny: TinySlm, data: st.DataObject) -> None:
    window, rows = data.draw(st.sampled_from([5, 8, 20])), data.draw(st.integers(1, 12))
    tree = random_tree(data.draw(st.integers(1, rows)), data.draw(st.integers(0, 999)))
    tokens = data.draw(st.integers(0, 25))
    feed = feed_of(tiny, tree, rows, filled(tiny, tokens, window))
    first = max(0, tokens - window)
    for kind, owner, reach in (("full", 2, window), ("sliding", 0, min(window, SLIDING_WINDOW - 1))):
        mask, positions = feed[f"mask_{kind}"], feed[f"past_keys_{owner}"][0, 0, 0]
        slots = len(positions)
        assert slots == (window if kind == "full" else min(window, SLIDING_WINDOW + rows))
        assert set(np.unique(mask).tolist()) <= {0.0, MASKED}
        for row in range(tree.run):
            path = path_of(tree, row)
            position = tokens + len(path) - 1
            visible = seen(mask, row)
            # Slots are told apart by what lies in them: the position of their token.
            past = [int(positions[slot]) for slot in visible if slot < slots]
            assert sorted(past) == [p for p in range(first, tokens) if position - p <= reach]
            wanted = {r for depth, r in enumerate(path) if len(path) - 1 - depth <= reach}
            assert {slot - slots for slot in visible if slot >= slots} == wanted
        for row in range(tree.run, rows):
            assert seen(mask, row) == {slots + row}


def test_stored_drafts_beyond_what_sliding_layers_are_given_are_refused(tiny: TinySlm) -> None:
    """2 rows leave a sliding layer of 8 tokens 10 slots; 3 stored rows still fit beside the 7 it sees, 4 do not."""
    cache = filled(tiny, 20, 32)
    for stored in range(1, 5):
        append(cache, [20])
        tree = RowTree((None,) * (stored + 1), stored=stored)
        if stored < 4:
            assert feed_of(tiny, tree, 2, cache)["past_keys_0"].shape[-1] == 10
        else:
            with pytest.raises(ExportError, match="4 drafted rows"):
                feed_of(tiny, tree, 2, cache)


def feed_of(tiny: TinySlm, tree: RowTree, rows: int, cache: KvWindow) -> Feed:
    inputs = token_inputs(tiny, [5] * tree.run)
    return TreeFeedBuilder(tiny.config, rows, cache.window).feed(tree, *inputs, cache.view())


@pytest.mark.parametrize("position", range(6, 19))
def test_visible_positions_of_single_tokens(tiny: TinySlm, position: int) -> None:
    """cases.md row 25: W = 8, prompt 6, then single tokens: p sees p-7..p in sliding layers, and nothing is stuck."""
    cache = filled(tiny, position, 16)
    feed = TreeFeedBuilder(tiny.config, 1, 16).feed(RowTree.chain(1), *token_inputs(tiny, [5]), cache.view())
    for kind, owner, reach in (("sliding", 0, 7), ("full", 2, 16)):
        visible = feed[f"mask_{kind}"][0, 0, 0] == 0.0
        keys, values = feed[f"past_keys_{owner}"][0, 0, 0], feed[f"past_values_{owner}"][0, 0, :, 0]
        slots = keys[visible[: len(keys)]]
        assert slots.tolist() == list(range(max(0, position - reach), position))
        assert values[visible[: len(keys)]].tolist() == slots.tolist()
        assert visible[len(keys)]
    assert cache.next_position == position


@pytest.mark.parametrize("position", [0, 3, 1000])
def test_rotations_are_those_of_each_rows_position(tiny: TinySlm, position: int) -> None:
    view = KvWindow(cache_shapes(tiny.config), 8).view()
    view = type(view)(view.caches, 0, 0, position)
    feed = TreeFeedBuilder(tiny.config, 9, 8).feed(ROUND, *token_inputs(tiny, range(8)), view)
    depths = [0, 1, 2, 3, 4, 1, 2, 0]
    rotary = Gemma4TextRotaryEmbedding(tiny.model.config)
    for kind in ("sliding", "full"):
        wanted = rotary(torch.zeros(1), torch.tensor([[position + d for d in depths]]), f"{kind}_attention")
        cos, sin = feed[f"cos_{kind}"][0, 0], feed[f"sin_{kind}"][0, 0].copy()
        sin[:, : sin.shape[1] // 2] *= -1
        np.testing.assert_allclose(cos[:8], wanted[0][0].numpy(), atol=1e-4)  # 1000 radians in float32: 6e-5
        np.testing.assert_allclose(sin[:8], wanted[1][0].numpy(), atol=1e-4)
        assert (cos[8] == 1.0).all()
        assert (sin[8] == 0.0).all()


@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 20])
@pytest.mark.parametrize("window", [8, 32])
def test_every_row_equals_its_path_alone(tiny: TinySlm, window: int, prompt: int) -> None:
    """Rows 0 and 1 are accepted tokens that the window lacks, the rest is a random tree."""
    tokens, drafted = text(prompt), text(11, seed=8)
    tree = RowTree((None, 0, *((parent or 0) + 1 for parent in random_tree(9, prompt).parents)))
    session = Session(tiny, 12, window)
    session.prefill(tokens)
    logits = session.draft(tree, drafted)
    for row in range(tree.run):
        path = [drafted[node] for node in path_of(tree, row)]
        wanted = tiny.reference(tokens + path, window)[-1]
        assert np.abs(logits[row] - wanted).max() <= TOLERANCE, row


@pytest.mark.parametrize("prompt", [3, 14])
def test_second_pass_reads_the_drafted_rows_of_the_first(tiny: TinySlm, prompt: int) -> None:
    tokens, drafted = text(prompt), text(8, seed=9)
    session = Session(tiny, 8, 32)
    session.prefill(tokens)
    first = session.draft(ROUND, drafted)
    grown = RowTree((*ROUND.parents, 4, 5, 8, 7, None), stored=8)
    later = text(5, seed=10)
    second = session.draft(grown, later)
    for row in range(13):
        path = [(drafted + later)[node] for node in path_of(grown, row)]
        found = first[row] if row < 8 else second[row - 8]
        assert np.abs(found - tiny.reference(tokens + path, 32)[-1]).max() <= TOLERANCE, row
    session.cache.accept([0, 1, 2, 3, 4, 8, 10])
    path = [(drafted + later)[node] for node in (0, 1, 2, 3, 4, 8, 10)]
    after = session.draft(RowTree.chain(1), [5])
    assert np.abs(after[0] - tiny.reference([*tokens, *path, 5], 32)[-1]).max() <= TOLERANCE


@pytest.mark.parametrize("window", [8, 32])
def test_rounds_equal_a_run_that_never_drafted(tiny: TinySlm, window: int) -> None:
    """Accepted paths of 0 to 5 rows; after each round logits and caches are those of the plain text."""
    tokens, session = text(6), Session(tiny, 8, window)
    session.prefill(tokens)
    for round_number, kept in enumerate([[0, 1, 2], [], [0, 5], [0, 1, 2, 3, 4], [0], []]):
        drafted = text(8, seed=20 + round_number)
        session.draft(ROUND, drafted)
        session.cache.accept(kept)
        tokens += [drafted[row] for row in kept]
        plain = Session(tiny, 1, window)
        plain.prefill(tokens)
        ours, theirs = session.cache.view(), plain.cache.view()
        assert (ours.count, ours.next_position) == (theirs.count, theirs.next_position)
        for owner, rows in theirs.caches.items():
            np.testing.assert_allclose(ours.caches[owner].keys, rows.keys, atol=TOLERANCE)
            np.testing.assert_allclose(ours.caches[owner].values, rows.values, atol=TOLERANCE)
        for probe in (session, plain):
            logits = probe.draft(RowTree.chain(1), [7])
            probe.cache.accept([])
            assert np.abs(logits[0] - tiny.reference([*tokens, 7], window)[-1]).max() <= TOLERANCE


@pytest.mark.parametrize(("tree", "rows"), [(RowTree((None, 0, 0, 1, 1)), 8), (RowTree.chain(3), 16)])
@pytest.mark.parametrize("prompt", [0, 5, 12])
def test_padding_has_no_influence(tiny: TinySlm, tree: RowTree, rows: int, prompt: int) -> None:
    """cases.md row 19: padded and unpadded graphs agree, also with rubbish in the padding, and all is finite."""
    drafted, results = text(tree.run, seed=5), []
    for size, rubbish in ((tree.run, 0.0), (rows, 0.0), (rows, 50.0)):
        session = Session(tiny, size, 8)
        if prompt:
            session.prefill(text(prompt))
        feed = session.builder.feed(tree, *token_inputs(tiny, drafted), session.cache.view())
        for name in ("embedding", "per_layer"):
            feed[name][:, :, tree.run :] = rubbish
        result = torch_runner(tiny.slm, SlmInputs(tiny.config, size, 8))(feed)
        assert all(np.isfinite(array).all() for array in result.values())
        caches = new_rows(result)
        taken = {owner: cache.take(range(tree.run)) for owner, cache in caches.items()}
        results.append((result["logits"][:, :, : tree.run], taken))
    for logits, caches in results[1:]:
        assert np.abs(logits - results[0][0]).max() <= 1e-5
        for owner, cache in caches.items():
            assert np.abs(cache.keys - results[0][1][owner].keys).max() <= 1e-5
            assert np.abs(cache.values - results[0][1][owner].values).max() <= 1e-5


def test_rubbish_in_unused_slots_changes_nothing(tiny: TinySlm) -> None:
    session = Session(tiny, 8, 16)
    session.prefill(text(5))
    feed = session.builder.feed(ROUND, *token_inputs(tiny, text(8)), session.cache.view())
    clean = session.run_feed(feed)
    for owner in cache_shapes(tiny.config):
        keys, values = (feed[f"past_{part}_{owner}"].copy() for part in ("keys", "values"))
        for slots in (keys[..., 5:], values[:, :, 5:]):
            slots[...] = np.random.default_rng(owner).standard_normal(slots.shape)
        feed[f"past_keys_{owner}"], feed[f"past_values_{owner}"] = keys, values
    dirty = session.run_feed(feed)
    assert all(np.array_equal(clean[name], dirty[name]) for name in clean)


def test_softcap_is_that_of_the_model(tiny: TinySlm) -> None:
    logits = np.linspace(-90, 90, 50, dtype=np.float32)
    wanted = torch.tanh(torch.from_numpy(logits) / 30.0) * 30.0
    np.testing.assert_allclose(softcapped(logits, 30.0), wanted.numpy(), atol=1e-5)
    assert softcapped(logits, None) is logits


@pytest.mark.parametrize(
    ("parents", "stored", "message"),
    [
        ((None, 2, 0), 0, "row 1 of the tree follows row 2"),
        ((0,), 0, "row 0 of the tree follows row 0"),
        ((None, -1), 0, "row 1 of the tree follows row -1"),
        ((), 0, "0 of the tree's 0 rows"),
        ((None, 0), 2, "2 of the tree's 2 rows"),
    ],
)
def test_what_is_no_tree_is_refused(parents: tuple[int | None, ...], stored: int, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        RowTree(parents, stored)


def test_what_does_not_fit_is_refused(tiny: TinySlm) -> None:
    builder, view = TreeFeedBuilder(tiny.config, 4, 8), KvWindow(cache_shapes(tiny.config), 8).view()
    with pytest.raises(ExportError, match="runs 5 rows, the graph has 4"):
        builder.feed(RowTree.chain(5), *token_inputs(tiny, range(5)), view)
    with pytest.raises(ExportError, match=r"embeddings are \[3, 24\], but the pass runs 4 rows"):
        builder.feed(RowTree.chain(4), *token_inputs(tiny, range(3)), view)
    with pytest.raises(ExportError, match="1 rows of the tree count as stored, but the window holds a draft of 0"):
        builder.feed(RowTree((None, 0), stored=1), *token_inputs(tiny, [1]), view)
    with pytest.raises(ExportError, match="layer 0: 9 slots, the graph has 8"):
        builder.feed(RowTree.chain(1), *token_inputs(tiny, [1]), KvWindow(cache_shapes(tiny.config), 9).view())
