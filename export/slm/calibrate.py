"""Ranges of every float value of the draft graph, over texts in chunks and one drafting round behind each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from export.graphs.clips import clip_bounds
from export.observe import RangeRecorder
from export.slm.runner import SlmModel, SlmTables
from export.slm.samples import tree_of
from export.slm.sources import HeldOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from export.activation_params import Range
    from export.checkpoint.slm import SlmCheckpoint, SlmConfig
    from export.observe import WatchedGraph

_ROUND = 5


def collect_ranges(
    watched: WatchedGraph,
    config: SlmConfig,
    tables: SlmTables,
    texts: Sequence[Sequence[int]],
    keep: np.ndarray,
    rows: int,
    window: int,
) -> dict[str, Range]:
    """Minimum and maximum of every value while the draft graph reads `texts` and drafts behind them.

    The two looked-up inputs get the range that their tables can reach: any token may come. Masks have none.
    """
    recorder = RangeRecorder(watched)
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


def cache_ranges(checkpoint: SlmCheckpoint, owners: Mapping[str, str]) -> dict[str, Range]:
    """The 8-bit ranges of new keys and values, and so of past ones and all else that moves with them.

    They follow from the checkpoint's scales, whatever prompts show. `owners`: value -> the first that it is tied to.
    """
    given: dict[str, Range] = {}
    for owner in checkpoint.config.cache_owners:
        for role, scale in zip(("keys", "values"), checkpoint.cache_scales(owner), strict=True):
            tied = owners[f"new_{role}_{owner}"]
            given |= {name: clip_bounds(scale) for name, group in owners.items() if group == tied}
    return given
