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
        read_and_draft(model, text, index, keep)
    return recorder.ranges | table_ranges(tables)


def read_and_draft(model: SlmModel, text: Sequence[int], index: int, keep: np.ndarray) -> None:
    """Read all of `text` but for its last tokens in chunks, then draft these; `index` seeds the tree's siblings."""
    ids = list(text[: model.window])
    position = max(0, len(ids) - _ROUND)
    session = model.begin()
    session.prefill(ids[:position])
    tree, tokens = tree_of(HeldOut(ids, position, 0), np.random.default_rng(index), keep, model.draft_rows)
    session.draft(tree, tokens)


def table_ranges(tables: SlmTables) -> dict[str, Range]:
    """What the two looked-up inputs can reach: any token may come."""
    highest = {"embedding": tables.tokens.max_abs(), "per_layer": tables.per_layer.max_abs()}
    return {name: (-size, size) for name, size in highest.items()}
