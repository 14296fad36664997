"""Ranges of every value of the draft graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from export.graphs.tree_feeds import RowTree
from export.observe import MASKS, save_watched
from export.passes.common import float_values, name_of
from export.slm.calibrate import collect_ranges

from .builders import KEEP, PER_LAYER_VOCAB_SIZE, VOCAB_SIZE, text
from .conftest import ROWS, WINDOW, Tiny

if TYPE_CHECKING:
    from pathlib import Path

    from export.activation_params import Range
    from export.slm.weights import TwoBit


@pytest.mark.parametrize(("two_bit", "clip"), [("int4", True), ("nbits", False)])
def test_ranges(tiny: Tiny, tmp_path: Path, two_bit: TwoBit, clip: bool) -> None:
    """Every value but the masks has one; logits reach what transformers gives; the same texts give the same ranges.

    Without clips, logits from MatMulNBits have further values named after them.
    """
    graph = tiny.build(two_bit, clip=clip)
    watched = save_watched(graph, tmp_path / "observed.onnx")
    texts = [text(20, seed=1), text(WINDOW + 5, seed=2)]

    def collect() -> dict[str, Range]:
        return collect_ranges(watched, tiny.checkpoint.config, tiny.tables, texts, KEEP, ROWS, WINDOW)

    ranges = collect()
    assert ranges == collect()
    assert ranges.keys() == {name_of(value) for value in float_values(graph.graph)} - MASKS
    assert all(low <= high for low, high in ranges.values())
    logits = tiny.reference.tree_logits([], RowTree.chain(20), texts[0], KEEP, "clipped" if clip else "free")
    raw = np.arctanh(logits.astype(np.float64) / 5.0) * 5.0
    for chunk, columns in enumerate((slice(160), slice(160, None))):
        low, high = ranges[f"logits_{chunk}"]
        assert low <= raw[:, columns].min() + 1e-3
        assert high >= raw[:, columns].max() - 1e-3


def test_inputs_from_tables_have_the_range_of_all_tokens(tiny: Tiny, ranges: dict[str, Range]) -> None:
    """Any token may come, so a calibration that saw few of them must not narrow the input."""
    for name, table, count in (
        ("embedding", tiny.tables.tokens, VOCAB_SIZE),
        ("per_layer", tiny.tables.per_layer, PER_LAYER_VOCAB_SIZE),
    ):
        rows = table.lookup(np.arange(count))
        low, high = ranges[name]
        assert low == -high
        assert low <= rows.min() <= low * 0.99  # random bytes have the lowest code somewhere
        assert rows.max() <= high
