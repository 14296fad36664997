"""What drafters run on: the graphs with their tables, whatever engine is behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyco_npu.decode.drafters.mtp import MtpCandidates
from hyco_npu.decode.drafters.slm import SlmRows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from export.engines.graph_io import StepGraph
    from export.mtp.chain import MtpChain
    from export.slm.runner import SlmModel
    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.config import MtpSettings
    from hyco_npu.decode.scores import SourceScore


@dataclass(frozen=True)
class MtpEngine:
    """The MTP head. `window`: how many rows of the verifier it is shown; None: the whole text."""

    chain: MtpChain
    graph: StepGraph
    window: int | None


@dataclass(frozen=True, eq=False)
class SlmEngine:
    """The SLM. `token_ids` [columns] maps a logit's column to the verifier's vocabulary."""

    model: SlmModel
    token_ids: np.ndarray


@dataclass(frozen=True)
class Parts:
    """The engines that were opened, the clock of the text, and what makes a text at each of them."""

    mtp: MtpEngine | None
    slm: SlmEngine | None
    clock: Clock
    head: Callable[[MtpEngine, MtpSettings, SourceScore, Clock], MtpCandidates] = MtpCandidates
    rows: Callable[[SlmEngine, int, SourceScore, Clock], SlmRows] = SlmRows
