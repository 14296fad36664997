"""The compiler's estimate beside the measured times, and the factor between them.

    scale = sum over the round's graphs of passes x median of one measured pass
            / sum over the same graphs of passes x unscaled estimate of one pass

The measured pass holds the call to the NPU, which the estimate leaves out, so the factor covers both. It is given for
a phone's NPU alone: times of an x86 host or of the simulator say nothing about how far the estimate is off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyco_npu.bench.runs import NPU_LABEL
from hyco_npu.bench.summary import GRAPHS

if TYPE_CHECKING:
    from export.estimate import Estimate, GraphEstimate
    from hyco_npu.bench.statistics import Statistics
    from hyco_npu.bench.summary import RunSummary

SCALE_FORMULA = "sum(passes x median of one measured pass) / sum(passes x unscaled estimate of one pass)"
PAPER_LABEL = "paper, Galaxy S26 Ultra, derived"
PAPER_MS = {"slm_pass": 38.0, "mtp_step": 4.7, "round": 52.9}
"""What follows from the paper's tables for a keep set of 86K (device ms a round; one SLM pass; one MTP step)."""


@dataclass(frozen=True)
class GraphBeside:
    """One graph of the round. Estimates in ms as the estimate gives them (its scale included); scale: of this graph.

    part: the stem of the measured parts; measured: all its passes in the timed rounds, None where there are none.
    """

    graph: str
    part: str
    passes: int
    ms: float
    ms_low: float
    ms_high: float
    floor_ms: float
    measured: Statistics | None
    scale: float | None


@dataclass(frozen=True)
class EstimateBeside:
    """The estimate of a round beside a run. scale is None off the NPU, or where a graph of the round did not run."""

    label: str
    qnn_version: str
    applied_scale: float
    bandwidth_gbps: float
    unreliable: bool
    missing_kinds: tuple[str, ...]
    round_text: str
    round_ms: float
    round_ms_low: float
    round_ms_high: float
    floor_ms: float
    measured: Statistics | None
    graphs: tuple[GraphBeside, ...]
    scale: float | None


def put_beside(estimate: Estimate, summary: RunSummary) -> EstimateBeside:
    """The estimate's round and its graphs beside the figures of a run."""
    on_npu = summary.time_label == NPU_LABEL
    by_name = {graph.name: graph for graph in estimate.graphs}
    applied = estimate.options.scale
    graphs = tuple(
        _graph_beside(by_name[part.graph], part.passes, summary, applied if on_npu else None)
        for part in estimate.round.parts
    )
    return EstimateBeside(
        label=estimate.label,
        qnn_version=estimate.qnn_version,
        applied_scale=applied,
        bandwidth_gbps=estimate.options.bandwidth_gbps,
        unreliable=estimate.unreliable,
        missing_kinds=estimate.round.missing_kinds,
        round_text=str(estimate.round),
        round_ms=estimate.round.us / 1e3,
        round_ms_low=estimate.round.us_low / 1e3,
        round_ms_high=estimate.round.us_high / 1e3,
        floor_ms=estimate.round.floor_us / 1e3,
        measured=summary.round_ms,
        graphs=graphs,
        scale=_scale(graphs, applied) if on_npu else None,
    )


def _graph_beside(graph: GraphEstimate, passes: int, summary: RunSummary, applied: float | None) -> GraphBeside:
    """applied: the scale that the estimate holds already; None where no factor is to be computed."""
    part = GRAPHS[graph.kind]
    measured = summary.graphs.get(part)
    ms = graph.us / 1e3
    return GraphBeside(
        graph=graph.name,
        part=part,
        passes=passes,
        ms=ms,
        ms_low=graph.us_low / 1e3,
        ms_high=graph.us_high / 1e3,
        floor_ms=graph.floor_us / 1e3,
        measured=measured,
        scale=None if measured is None or applied is None or not ms else measured.median / (ms / applied),
    )


def _scale(graphs: tuple[GraphBeside, ...], applied: float) -> float | None:
    measured = [graph.passes * graph.measured.median for graph in graphs if graph.measured is not None]
    estimated = sum(graph.passes * graph.ms / applied for graph in graphs)
    return sum(measured) / estimated if len(measured) == len(graphs) and estimated > 0 else None
