"""Rows of a text in growing buffers, against a plain list of rows."""

from __future__ import annotations

import numpy as np
import torch

from hyco_npu.decode.row_cache import KeySpan, PassCache, RowCache

SHAPES = {0: (2, 4), 3: (1, 6)}  # layer -> kv heads, head_dim


def filled(rng: np.random.Generator, layer: int, rows: int) -> torch.Tensor:
    heads, width = SHAPES[layer]
    return torch.from_numpy(rng.standard_normal((heads, rows, width)).astype(np.float32))


def test_random_rounds_keep_the_rows_that_were_named() -> None:
    rng = np.random.default_rng(0)
    text = RowCache()
    wanted = {layer: ([torch.empty(heads, 0, width)] * 2) for layer, (heads, width) in SHAPES.items()}
    for count in (1, 9, 33, 300, 33, 5, 700, 33, 2, 33):  # past several growths
        kept = sorted(int(row) for row in rng.choice(count, rng.integers(1, count + 1), replace=False))
        for layer, before in wanted.items():
            keys, values = filled(rng, layer, count), filled(rng, layer, count)
            text.append(layer, keys, values)
            wanted[layer] = [torch.cat([a, b[:, kept]], 1) for a, b in zip(before, (keys, values), strict=True)]
        text.advance(count)
        text.keep(kept)
        for layer, pair in wanted.items():
            assert text.committed == text.filled == pair[0].shape[1]
            for own, other in zip(text.rows(layer, 0, text.committed), pair, strict=True):
                assert torch.equal(own, other)


def test_dropped_rows_are_overwritten() -> None:
    rng = np.random.default_rng(1)
    text = RowCache()
    text.append(0, filled(rng, 0, 5), filled(rng, 0, 5))
    text.advance(5)
    text.drop()
    keys, values = filled(rng, 0, 2), filled(rng, 0, 2)
    text.append(0, keys, values)
    text.advance(2)
    text.keep((1,))
    assert torch.equal(text.rows(0, 0, 1)[0], keys[:, 1:])
    assert torch.equal(text.rows(0, 0, 1)[1], values[:, 1:])


def test_a_span_holds_what_the_passes_first_row_sees() -> None:
    for past in range(12):
        for window in (1, 4, None):
            seen = [
                key for key in range(past + 1) if window is None or past - key < window
            ]  # as transformers defines it
            span = KeySpan.of(past, 3, window)
            assert list(range(span.start, span.stop)) == [*seen, past + 1, past + 2]
            assert len(span) == span.stop - span.start


def test_one_text_is_read_in_place_and_several_are_padded_with_zeros() -> None:
    rng = np.random.default_rng(2)
    texts = [RowCache(), RowCache()]
    for text, rows in zip(texts, (6, 3), strict=True):
        text.append(0, filled(rng, 0, rows), filled(rng, 0, rows))
        text.advance(rows)
        text.keep(range(rows))
    new = filled(rng, 0, 2)[None]
    keys, _ = PassCache(texts[:1], [2], {0: None}).update(new, new, 0)
    assert keys.data_ptr() == texts[0].rows(0, 0, 8)[0].data_ptr()
    keys, values = PassCache(texts, [2, 1], {0: 5}).update(torch.cat([new, new]), torch.cat([new, new]), 0)
    assert keys.shape == values.shape == (2, 2, 6, 4)
    assert torch.equal(keys[0], texts[0].rows(0, 2, 8)[0])
    assert torch.equal(keys[1, :, :4], texts[1].rows(0, 0, 4)[0])
    assert not keys[1, :, 4:].any()
