"""Ranges of every float value of the step graph, over the chains that it drafts from recorded verifier states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from export.observe import RangeRecorder
from quant.dtypes import INT8

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calibration.states import HeadState
    from export.activation_params import Range
    from export.mtp.chain import MtpChain
    from export.observe import WatchedGraph
    from quant.table import EmbeddingTable


def collect_ranges(watched: WatchedGraph, chain: MtpChain, states: Iterable[HeadState]) -> dict[str, Range]:
    """Minimum and maximum of every float value while `chain` drafts from `states`; masks have none."""
    recorder = RangeRecorder(watched)
    for state in states:
        for _ in chain.run(recorder, state):
            pass
    return recorder.ranges


def table_ranges(table: EmbeddingTable) -> dict[str, Range]:
    """What rows of the table can reach: any kept token may be drafted, also one that no calibration prompt drew."""
    highest = float(table.scale.max()) * INT8.qmax
    return {"embedding": (-highest, highest)}
