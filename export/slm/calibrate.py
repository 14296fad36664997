"""Ranges of every float value of the draft graph, over texts in chunks and one drafting round behind each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from export.engines.cpu import FloatGraph
from export.observe import RangeRecorder
from export.slm.runner import SlmModel, SlmTables
from export.slm.samples import tree_of
from export.slm.sources import HeldOut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from export.activation_params import Range
    from export.checkpoint.slm import SlmConfig

_ROUND = 5


def collect_ranges(
    observed: Path,
    config: SlmConfig,
    tables: SlmTables,
    texts: Sequence[Sequence[int]],
    keep: np.ndarray,
    rows: int,
    window: int,
) -> dict[str, Range]:
    """Minimum and maximum of every value while the draft graph reads `texts` and drafts behind them.

    The two looked-up inputs get the range that their tables can reach: any token may come.
    """
    recorder = RangeRecorder(FloatGraph(observed))
    model = SlmModel(config, tables, recorder, rows, recorder, rows, window, "float32")
    for index, text in enumerate(texts):
        ids = list(text[:window])
        position = max(0, len(ids) - _ROUND)
        session = model.begin()
        session.prefill(ids[:position])
        tree, tokens = tree_of(HeldOut(ids, position, 0), np.random.default_rng(index), keep, rows)
        session.draft(tree, tokens)
    ranges = recorder.ranges
    for name, table in (("embedding", tables.tokens), ("per_layer", tables.per_layer)):
        highest = table.max_abs()
        ranges[name] = (-highest, highest)
    return ranges
