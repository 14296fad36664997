"""Ranges of every float value of the step graph, over the chains that it drafts from recorded verifier states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from export.engines.cpu import FloatGraph
from export.observe import RangeRecorder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from calibration.states import HeadState
    from export.activation_params import Range
    from export.mtp.chain import MtpChain


def collect_ranges(observed: Path, chain: MtpChain, states: Iterable[HeadState]) -> dict[str, Range]:
    """Minimum and maximum of every float value while `chain` drafts from `states`.

    The attention mask is masked out of nothing: its own range and that of the sums it enters are bounded by -100.
    """
    recorder = RangeRecorder(FloatGraph(observed))
    for state in states:
        for _ in chain.run(recorder, state):
            pass
    return recorder.ranges
