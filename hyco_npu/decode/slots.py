"""Windows without their empty slots: a graph on the NPU has them all and masks them; floats on a CPU can do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from export.graphs.feeds import MASKED

if TYPE_CHECKING:
    from export.engines.graph_io import Feed

_BLOCK = 64
"""Slots are kept in blocks, so that kernels see few different shapes."""


def without_empty_slots(feed: Feed, rows: int) -> Feed:
    """A head's or an SLM's feed without the last slots that no row sees; masks end with columns for `rows` rows."""
    filled = _filled(feed, rows)
    cut = {}
    for name, array in feed.items():
        if "keys_" in name:
            cut[name] = array[..., : filled[array.shape[-1]]]
        elif "values_" in name:
            cut[name] = array[..., : filled[array.shape[-2]], :]
        elif name.startswith("mask_") and (slots := array.shape[-1] - rows) > filled[slots]:
            cut[name] = np.concatenate([array[..., : filled[slots]], array[..., slots:]], axis=-1)
        else:
            cut[name] = array
    return cut


def _filled(feed: Feed, rows: int) -> dict[int, int]:
    """How many slots of a window are kept, by the number that it has."""
    filled: dict[int, int] = {}
    for name, mask in feed.items():
        if name.startswith("mask_"):
            slots = mask.shape[-1] - rows
            seen = np.flatnonzero((mask[0, 0, :, :slots] > MASKED / 2).any(axis=0))
            used = int(seen[-1]) + 1 if len(seen) else 1
            filled[slots] = max(filled.get(slots, 0), min(slots, -(-used // _BLOCK) * _BLOCK))
    return filled
