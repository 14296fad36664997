"""Recorded passes: written and read, chosen by tree, and run on float and 8-bit graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from export.graphs.tree_feeds import RowTree, softcapped
from export.kv_window import KvRows
from export.slm.check import rows_of
from export.slm.samples import PassRunner, SlmSamples, TreeSample, load_samples, save_samples, tree_of
from export.slm.sources import HeldOut

from .builders import CACHE_SCALES, KEEP, text
from .conftest import PREFILL_ROWS, ROWS, WINDOW, Quantized, Tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from export.slm.runner import SlmModel, SlmText
    from export.slm.weights import TwoBit

TREES = [RowTree((None, 0, 1)), RowTree((None, None, 0, 1, 1)), RowTree((None,))]


def sample(seed: int, tree: RowTree, context: int) -> TreeSample:
    rng = np.random.default_rng(seed)
    rows = KvRows(*(rng.integers(-128, 128, shape, np.int8) for shape in ((1, 1, 8, context), (1, 1, context, 8))))
    embedding, per_layer = (rng.standard_normal((tree.run, width)).astype(np.float32) for width in (4, 6))
    return TreeSample(context, tree, embedding, per_layer, {0: rows, 12: rows} if context else {})


def test_written_and_read(tmp_path: Path) -> None:
    trees = [sample(seed, tree, context) for seed, (tree, context) in enumerate(zip(TREES, (5, 3, 1), strict=True))]
    logits = np.arange(27, dtype=np.float32).reshape(9, 3)
    references = {"fp32": {"logits": logits, "caches": logits + 1}, "prefill_fp32": {"caches": logits[:2]}}
    samples = SlmSamples(trees, sample(9, RowTree.chain(4), 0), references)
    save_samples(samples, tmp_path / "samples.safetensors")
    read = load_samples(tmp_path / "samples.safetensors")
    assert len(read.trees) == 3
    for one, other in zip([*samples.trees, samples.prefill], [*read.trees, read.prefill], strict=True):
        assert (one.context, one.tree) == (other.context, other.tree)
        np.testing.assert_array_equal(one.embedding, other.embedding)
        np.testing.assert_array_equal(one.per_layer, other.per_layer)
        assert one.caches.keys() == other.caches.keys()
        for owner, rows in one.caches.items():
            assert other.caches[owner].keys.dtype == np.int8
            np.testing.assert_array_equal(rows.keys, other.caches[owner].keys)
            np.testing.assert_array_equal(rows.values, other.caches[owner].values)
    assert read.references.keys() == references.keys()
    for name, outputs in references.items():
        assert read.references[name].keys() == outputs.keys()
        for key, array in outputs.items():
            np.testing.assert_array_equal(read.references[name][key], array)


@pytest.mark.parametrize(
    ("indices", "rows"), [([0], [0, 1, 2]), ([1], [3, 4, 5, 6, 7]), ([0, 2], [0, 1, 2, 8]), ([0, 1, 2], list(range(9)))]
)
def test_rows_of_chosen_trees(indices: list[int], rows: list[int]) -> None:
    """Trees of 3, 5 and 1 rows; what belongs to the prefill piece is left whole."""
    array = np.arange(18.0).reshape(9, 2)
    references = {"fp32": {"logits": array}, "prefill_fp32": {"caches": array}}
    trees = [sample(0, tree, 1) for tree in TREES]
    found = rows_of(SlmSamples(trees, trees[0], references), indices)
    np.testing.assert_array_equal(found["fp32"]["logits"], array[rows])
    np.testing.assert_array_equal(found["prefill_fp32"]["caches"], array)


@pytest.mark.parametrize("rows", [1, 2, 6, 8, 32])
@pytest.mark.parametrize("caught_up", [0, 1, 2])
def test_tree_of_a_round(caught_up: int, rows: int) -> None:
    """Catch-up, root and a chain of four are the text's; one sibling stands beside the first and the second of it."""
    tree, tokens = tree_of(HeldOut(text(30), 12, caught_up), np.random.default_rng(0), KEEP, rows)
    spine = caught_up + 5
    parents = (None, *range(spine - 1), caught_up, caught_up + 1)
    assert tree.parents == parents[:rows]
    assert tokens[:spine] == text(30)[12 : 12 + min(spine, rows)]
    assert len(tokens) == len(tree.parents)
    assert set(tokens[spine:]) <= set(KEEP.tolist())


def test_siblings_of_a_keep_set_of_one() -> None:
    _, tokens = tree_of(HeldOut(text(9), 2, 0), np.random.default_rng(0), np.array([7]), 32)
    assert tokens[5:] == [7, 7]


def sample_of(session: SlmText, tiny: Tiny, tree: RowTree, tokens: list[int]) -> TreeSample:
    view = session.cache.view()
    caches = {owner: rows.take(range(view.count)) for owner, rows in view.caches.items()}
    return TreeSample(view.count, tree, *tiny.tables.rows(tokens), caches)


def test_on_float_graphs(tiny: Tiny, float_model: Callable[..., SlmModel]) -> None:
    """The same logits as transformers', softcapped; two samples stand one below the other."""
    model, config, rounds = float_model(), tiny.checkpoint.config, [(3, TREES[0]), (9, TREES[1])]
    samples, wanted = [], []
    for length, tree in rounds:
        session, tokens = model.begin(), text(tree.run, seed=length)
        session.prefill(text(length))
        samples.append(sample_of(session, tiny, tree, tokens))
        wanted.append(tiny.reference.tree_logits(text(length), tree, tokens, KEEP, "clipped"))
    outputs = PassRunner(config, model.draft, ROWS, WINDOW, None).run(samples)
    np.testing.assert_allclose(outputs["logits"], np.concatenate(wanted), atol=5e-4)
    assert outputs["caches"].shape == (8, 2 * (8 + 8 + 16))


def test_on_8_bit_graphs(tiny: Tiny, quantized: Callable[[TwoBit], Quantized]) -> None:
    """Keys and values come back as numbers: codes times the checkpoint's scales, row by row in the order of owners."""
    made, config = quantized("int4"), tiny.checkpoint.config
    model, session = made.model(tiny), made.model(tiny).begin()
    session.prefill(text(9))
    one = sample_of(session, tiny, TREES[1], [1, 2, 3, 4, 5])
    scales = {tensor.name: tensor.scale for tensor in made.draft_boundary.outputs}
    outputs = PassRunner(config, model.draft, ROWS, WINDOW, scales).run([one])
    logits = session.draft(TREES[1], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(outputs["logits"], softcapped(logits, 5.0))
    view = session.cache.view()
    columns = []
    for owner, (keys, values) in CACHE_SCALES.items():
        rows = view.caches[owner].take(range(9, 14))
        columns += [rows.keys[0, 0].T * np.float32(keys), rows.values[0, 0] * np.float32(values)]
    np.testing.assert_allclose(outputs["caches"], np.concatenate(columns, axis=1), rtol=1e-6)
    of_prefill = {tensor.name: tensor.scale for tensor in made.prefill_boundary.outputs}
    piece = TreeSample(0, RowTree.chain(4), *tiny.tables.rows(text(4)), {})
    filled = PassRunner(config, model.prefill, PREFILL_ROWS, WINDOW, of_prefill).run([piece])
    assert filled.keys() == {"caches"}
    assert filled["caches"].shape == (4, 64)
