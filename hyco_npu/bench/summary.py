"""The figures of one run, and of two runs beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hyco_npu.bench.runs import OTHER, other_ms, pairs_of_rounds, part_names, time_label, times_of
from hyco_npu.bench.statistics import Interval, Statistics, describe, mean_interval, paired_ratio
from hyco_npu.bench.validity import accounted_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from device_runner.measurement import Measurement, RoundSample
    from hyco_npu.bench.reasons import Reason
    from hyco_npu.bench.runs import Run

GRAPHS = {"mtp": "mtp_step", "slm": "slm_pass"}
"""By kind of bundle, the stem of the parts that are passes of its drafting graph."""
TOKENS_METHOD = "mean of matched + 1 over recorded rounds, percentile bootstrap over them (scipy.stats.bootstrap), 95 %"
RATIO_METHOD = (
    "median of B over median of A in rounds of one number, two-stage percentile bootstrap over pairs of blocks and "
    "rounds within them, 95 %"
)


@dataclass(frozen=True)
class RunSummary:
    """A run's figures in ms, over its timed rounds; None or empty where it has none.

    parts: over the rounds that have the part, `other` last. graphs: every pass of a graph. first_round_ms: of each
    block. loads: by graph the provider, and of each block the milliseconds to open it and to check its files before.
    draft_ms_per_token: derived, round median over tokens per round.
    """

    run: Run
    time_label: str
    round_ms: Statistics | None
    parts: Mapping[str, Statistics]
    graphs: Mapping[str, Statistics]
    accounted: float | None
    first_round_ms: tuple[float, ...]
    loads: Mapping[str, Load]
    tokens_per_round: Interval | None
    draft_ms_per_token: float | None


@dataclass(frozen=True)
class Load:
    """Opening a graph, in each block: ms of the session, and ms of checking its files."""

    provider: str
    load_ms: tuple[float, ...]
    verify_ms: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """B against A in one performance mode; ratio below 1: B is quicker. None with the reason in `why`."""

    perf_mode: str | None
    ratio: Interval | None
    block_pairs: int
    why: str | None


def summarise(measurement: Measurement, run: Run) -> RunSummary:
    """All figures of one run."""
    rounds = run.timed_rounds
    round_ms = describe([sample.total_ms for sample in rounds])
    tokens = tokens_per_round(measurement, run)
    return RunSummary(
        run=run,
        time_label=time_label(run.runner),
        round_ms=round_ms,
        parts=_parts(rounds),
        graphs=_graphs(rounds),
        accounted=accounted_share(rounds),
        first_round_ms=tuple(block.rounds[0].total_ms for block in run.blocks if block.rounds),
        loads=_loads(run),
        tokens_per_round=tokens,
        draft_ms_per_token=None if round_ms is None or tokens is None else round_ms.median / tokens.value,
    )


def tokens_per_round(measurement: Measurement, run: Run) -> Interval | None:
    """Matched tokens and the bonus, once for each recorded round, warm-up included; None without the truth.

    Blocks draft for the same recorded rounds, so counting each block would only narrow the interval.
    """
    matched: dict[int, int] = {}
    for block in run.blocks:
        for sample in block.rounds:
            if sample.matched is not None:
                matched.setdefault(sample.number % (measurement.recorded_rounds or sample.number + 1), sample.matched)
    return mean_interval([count + 1 for count in matched.values()])


def compare(runs: Sequence[Run], reasons: Sequence[Reason]) -> tuple[Comparison, ...]:
    """B against A in every performance mode that either ran in; empty where there is no B."""
    by_key = {(run.label, run.perf_mode): run for run in runs}
    if not any(label == "B" for label, _ in by_key):
        return ()
    modes = dict.fromkeys(mode for _, mode in by_key)
    return tuple(_compare(by_key.get(("A", mode)), by_key.get(("B", mode)), mode, reasons) for mode in modes)


def _compare(first: Run | None, second: Run | None, mode: str | None, reasons: Sequence[Reason]) -> Comparison:
    if first is None or second is None:
        return Comparison(mode, None, 0, f"only {'B' if first is None else 'A'} ran in this performance mode")
    bad = [label for label in ("A", "B") if any(reason.concerns(label, mode) for reason in reasons)]
    if bad:
        return Comparison(mode, None, 0, f"{' and '.join(bad)} did not run validly")
    blocks = [
        [(own.total_ms, other.total_ms) for own, other in block] for block in pairs_of_rounds(first, second) if block
    ]
    ratio = paired_ratio(blocks)
    return Comparison(mode, ratio, len(blocks), None if ratio else "A and B have no timed round of one number")


def _parts(rounds: Sequence[RoundSample]) -> dict[str, Statistics]:
    series = {name: [sample.parts[name] for sample in rounds if name in sample.parts] for name in part_names(rounds)}
    series[OTHER] = [other_ms(sample) for sample in rounds]
    described = {name: describe(values) for name, values in series.items()}
    return {name: figures for name, figures in described.items() if figures is not None}


def _graphs(rounds: Sequence[RoundSample]) -> dict[str, Statistics]:
    described = {graph: describe(times_of(rounds, graph)) for graph in GRAPHS.values()}
    return {graph: figures for graph, figures in described.items() if figures is not None}


def _loads(run: Run) -> dict[str, Load]:
    graphs = dict.fromkeys(load.graph for block in run.blocks for load in block.loads)
    loads = {graph: [load for block in run.blocks for load in block.loads if load.graph == graph] for graph in graphs}
    return {
        graph: Load(
            ", ".join(dict.fromkeys(load.provider for load in of_graph)),
            tuple(load.milliseconds for load in of_graph),
            tuple(load.verify_ms for load in of_graph),
        )
        for graph, of_graph in loads.items()
    }


def stacked_medians(summary: RunSummary) -> dict[str, float]:
    """For a picture: each part's median over all timed rounds, a round without the part counting as 0 ms."""
    rounds = summary.run.timed_rounds
    medians = {
        name: float(np.median([sample.parts.get(name, 0.0) for sample in rounds])) for name in part_names(rounds)
    }
    if rounds:
        medians[OTHER] = max(0.0, float(np.median([other_ms(sample) for sample in rounds])))
    return medians
