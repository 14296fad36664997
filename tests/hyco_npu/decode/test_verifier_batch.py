"""Several texts in one forward pass: each gets what it gets alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.tree import DraftTree
from hyco_npu.decode.verifier import TextVerifier, VerifierModel, VerifierOptions
from tests.hyco_npu.decode.tiny_models import (
    plain_cache,
    plain_logits,
    random_ids,
    random_tree,
    tiny_model,
    tree_logits,
)

NAMES = ("gemma4-moe", "gemma4-dense", "gemma4-shared", "gemma3", "llama", "qwen3-sliding")
LENGTHS = (1, 5, 8, 23)
TOLERANCE = {"rtol": 0, "atol": 1e-4}


@cache
def model_of(name: str) -> Any:
    """One of each kind for all tests."""
    return tiny_model(name)


def assert_rows_equal(one: TextVerifier, other: TextVerifier, layers: range) -> None:
    assert one.cache.committed == other.cache.committed
    for layer in layers:
        pairs = (text.cache.rows(layer, 0, text.cache.committed) for text in (one, other))
        for own, alone in zip(*pairs, strict=True):
            np.testing.assert_allclose(own.numpy(), alone.numpy(), **TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_different_lengths_get_what_they_get_alone(name: str) -> None:
    rng = np.random.default_rng(1)
    model = model_of(name)
    verifier = VerifierModel(model, VerifierOptions(prefill_rows=7))
    texts = [random_ids(rng, length) for length in LENGTHS]
    batch, alone = [verifier.begin() for _ in texts], [verifier.begin() for _ in texts]
    for ids, logits, single in zip(texts, verifier.prefill_batch(batch, texts), alone, strict=True):
        np.testing.assert_allclose(logits, plain_logits(model, ids)[-1:], **TOLERANCE)
        single.prefill(ids)
    rows: list[tuple[int, ...]] = [() for _ in texts]
    for nodes in ((0, 4, 12, 7), (9, 1, 0, 3), (2, 2, 2, 2)):
        for ids, one, single, path in zip(texts, batch, alone, rows, strict=True):
            ids.append(random_ids(rng, 1)[0])
            update, wanted = one.commit(path, ids[-1]), single.commit(path, ids[-1])
            assert (update is None) == (wanted is None)
            if update is not None and wanted is not None:
                np.testing.assert_allclose(update.hidden, wanted.hidden, **TOLERANCE)
                np.testing.assert_allclose(update.keys["full"], wanted.keys["full"], **TOLERANCE)
                np.testing.assert_allclose(update.values["sliding"], wanted.values["sliding"], **TOLERANCE)
        trees = [random_tree(rng, ids[-1], count) for ids, count in zip(texts, nodes, strict=True)]
        for number, logits in enumerate(verifier.verify_batch(batch, trees)):
            tree, ids = trees[number], texts[number]
            assert logits.shape == (tree.rows, model.config.vocab_size)
            np.testing.assert_allclose(logits, tree_logits(model, ids, tree), **TOLERANCE)
            np.testing.assert_allclose(alone[number].verify(tree), logits, **TOLERANCE)
            rows[number] = tree.path(tree.rows - 1)
            ids += [tree.token_ids[row] for row in rows[number]]
    for one, single, path in zip(batch, alone, rows, strict=True):
        one.commit(path, 40)
        single.commit(path, 40)
        assert_rows_equal(one, single, range(len(plain_cache(model, [7]))))


def test_a_text_may_leave_the_batch_and_come_back() -> None:
    model = model_of("gemma4-moe")
    verifier = VerifierModel(model)
    texts = [verifier.begin(), verifier.begin()]
    verifier.prefill_batch(texts, [[7, 8, 9], [10, 11]])
    for text in texts:
        text.commit((), 40)
    texts[0].verify(DraftTree.chain([40, 50], "test"))
    texts[0].commit((1,), 60)
    trees = [DraftTree.chain([60, 70], "test"), DraftTree.chain([40, 50], "test")]
    logits = verifier.verify_batch(texts, trees)
    np.testing.assert_allclose(logits[0], plain_logits(model, [7, 8, 9, 40, 50, 60, 70])[-2:], **TOLERANCE)
    np.testing.assert_allclose(logits[1], plain_logits(model, [10, 11, 40, 50])[-2:], **TOLERANCE)


def test_a_batch_is_checked() -> None:
    verifier = VerifierModel(model_of("llama"))
    text = verifier.begin()
    with pytest.raises(DecodeError, match="1 texts and 2 inputs"):
        verifier.prefill_batch([text], [[7], [8]])
    with pytest.raises(DecodeError, match="twice or foreign"):
        verifier.prefill_batch([text, text], [[7], [8]])
    with pytest.raises(DecodeError, match="twice or foreign"):
        verifier.prefill_batch([VerifierModel(model_of("llama")).begin()], [[7]])
    assert verifier.verify_batch([], []) == verifier.prefill_batch([], []) == []
