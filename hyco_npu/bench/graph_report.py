"""Graphs that were measured one by one (AI Hub, qnn-net-run): their figures, a sum, a verdict, a table.

No drafting round was measured, so `round_ms` is null. What stands in its place is derived and says so:

    sum = sum over the graphs of passes in a round x median of one run

The first run of each graph is kept in its series and in no figure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from export.estimate.round import PASSES
from hyco_npu.bench.cells import STATISTICS, statistics_row
from hyco_npu.bench.reasons import DEFAULT_LIMITS, Limits, Reason
from hyco_npu.bench.statistics import Statistics, describe, drift

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from device_runner.graph_series import GraphSeries, GraphsMeasurement

SCHEMA_VERSION = 1
NOT_A_ROUND = "each graph by itself, not a drafting round"
SUM_LABEL = "sum of graph medians, not a measured round; CPU share not included"


@dataclass(frozen=True)
class GraphFigures:
    """A graph with the figures of its runs in ms, the first one left out."""

    series: GraphSeries
    ms: Statistics
    other_ms: dict[str, Statistics]


@dataclass(frozen=True)
class GraphsResult:
    """What a measurement of graphs comes to. sum_ms: see above; lacks: kinds of bundle that a round has beside."""

    measurement: GraphsMeasurement
    graphs: tuple[GraphFigures, ...]
    sum_ms: float
    lacks: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def valid(self) -> bool:
        """Whether there is no reason against it."""
        return not self.reasons

    @property
    def measured_on_device(self) -> str:
        """In the word that every report of the project uses."""
        return f"{'measured' if self.valid else 'measured, but invalid'}, {NOT_A_ROUND}"


def evaluate_graphs(measurement: GraphsMeasurement, limits: Limits = DEFAULT_LIMITS) -> GraphsResult:
    """Figures and verdict; every series has two runs at least."""
    graphs = tuple(_figures(series) for series in measurement.graphs)
    return GraphsResult(
        measurement=measurement,
        graphs=graphs,
        sum_ms=sum(graph.series.passes * graph.ms.median for graph in graphs),
        lacks=tuple(kind for kind in PASSES if kind not in {graph.series.kind for graph in graphs}),
        reasons=tuple(reason for series in measurement.graphs for reason in _reasons(series, limits)),
    )


def graphs_record(result: GraphsResult) -> dict[str, object]:
    """The result as one JSON object, `schema_version` 1; times in ms, docs/bench-hub.md tells the fields."""
    measurement = result.measurement
    identity = None if measurement.identity is None else asdict(measurement.identity)
    return {
        "schema_version": SCHEMA_VERSION,
        "valid": result.valid,
        "reasons": [{**asdict(reason), "message": str(reason)} for reason in result.reasons],
        "measured_on_device": result.measured_on_device,
        "device": {"name": measurement.device, "identity": identity},
        "provider": measurement.provider,
        "tool": measurement.tool,
        "clock": measurement.clock,
        "inputs": measurement.inputs,
        "qnn_runtime": measurement.qnn_runtime,
        "bundle": {series.kind: str(series.bundle) for series in measurement.graphs},
        "rounds": 0,
        "round_ms": None,
        "graphs": [_graph_record(graph) for graph in result.graphs],
        "derived_round": {
            "ms": result.sum_ms,
            "label": SUM_LABEL,
            "parts": {graph.series.graph: graph.series.passes for graph in result.graphs},
            "lacks": list(result.lacks),
        },
    }


def render_graphs(console: Console, result: GraphsResult) -> None:
    """The verdict, what was measured and how, the graphs, the sum."""
    from rich.table import Table

    console.print("[bold green]VALID[/bold green]" if result.valid else "[bold red]INVALID[/bold red]")
    for line in _lines(result):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    verdict = "" if result.valid else "INVALID: "
    table = Table(title=f"{verdict}ms, {result.measurement.provider}")
    for index, column in enumerate(("graph", *STATISTICS)):
        table.add_column(column, justify="right" if index else "left", no_wrap=index == 0)
    for graph in result.graphs:
        table.add_row(graph.series.graph, *statistics_row(graph.ms))
        for name, figures in graph.other_ms.items():
            table.add_row(f"  {name}", *statistics_row(figures))
    console.print(table)
    parts = " + ".join(f"{graph.series.passes} x {graph.series.graph}" for graph in result.graphs)
    lacks = "".join(f"; no {kind} bundle was given" for kind in result.lacks)
    text = f"{parts} = {result.sum_ms:.3f} ms, {result.measurement.provider}: {SUM_LABEL}{lacks}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _figures(series: GraphSeries) -> GraphFigures:
    return GraphFigures(series, _described(series.series_ms), {n: _described(ms) for n, ms in series.other_ms.items()})


def _described(series_ms: tuple[float, ...]) -> Statistics:
    figures = describe(series_ms[1:])
    assert figures is not None, "a series has two runs at least"
    return figures


def _reasons(series: GraphSeries, limits: Limits) -> Iterator[Reason]:
    """What makes a graph's times unusable."""
    if series.off_npu:
        count = sum(series.layers.values()) - series.layers.get("NPU", 0)
        text = f"{count} of {sum(series.layers.values())} layers are not on the NPU: {', '.join(series.off_npu)}"
        yield Reason("off_npu", text, count, 0, series.graph)
    timed = series.series_ms[1:]
    if len(timed) < limits.min_rounds:
        text = f"{len(timed)} runs beside the first; the limit is {limits.min_rounds}"
        yield Reason("runs", text, len(timed), limits.min_rounds, series.graph)
    moved = drift(timed)
    if moved is not None and moved.beyond(limits.max_drift, limits.drift_p):
        text = (
            f"the last third of the runs took {moved.ratio:.3f} times the first third (p = {moved.p:.2g}); the limit "
            f"is {limits.max_drift:.0%}"
        )
        yield Reason("drift", text, moved.ratio, limits.max_drift, series.graph)
    yield from _heat(series, limits)


def _heat(series: GraphSeries, limits: Limits) -> Iterator[Reason]:
    """A phone of one's own has its heat read; of a hosted one nothing is told."""
    if series.before is None or series.after is None:
        return
    if series.cool_down is None:
        yield Reason("gate", "the NPU was timed without a thermal gate", False, True, series.graph)
    for when, facts in (("before", series.before), ("after", series.after)):
        if facts.thermal is not None and facts.thermal.status > limits.max_thermal_status:
            status = facts.thermal.status
            text = f"the thermal status is {status} {when} the runs; the limit is {limits.max_thermal_status}"
            yield Reason("thermal_status", text, status, limits.max_thermal_status, series.graph)


def _lines(result: GraphsResult) -> Iterator[str]:
    measurement = result.measurement
    yield from (f"- {reason}" for reason in result.reasons)
    yield f"measured: {NOT_A_ROUND}"
    yield f"device: {measurement.device}"
    for name in ("tool", "clock", "inputs"):
        yield f"{name}: {getattr(measurement, name)}"
    yield f"QNN that loaded the binaries: {measurement.qnn_runtime}"
    for graph in result.graphs:
        series = graph.series
        loads = ", ".join(f"{name} {ms:.1f} ms" for name, ms in series.loads_ms.items())
        yield f"{series.graph}: first run {series.series_ms[0]:.3f} ms, load {loads}, {measurement.provider}"
        if series.layers:
            yield f"{series.graph}: layers by unit: {', '.join(f'{n} {unit}' for unit, n in series.layers.items())}"
        if series.peak_memory_bytes is not None:
            yield f"{series.graph}: peak memory {series.peak_memory_bytes / 1e6:.1f} MB"
        yield from (f"{series.graph}: {name}: {value}" for name, value in series.origin.items())


def _graph_record(graph: GraphFigures) -> dict[str, object]:
    series = graph.series
    return {
        "kind": series.kind,
        "graph": series.graph,
        "rows": series.rows,
        "passes": series.passes,
        "binary_sha256": series.binary_sha256,
        "ms": asdict(graph.ms),
        "first_ms": series.series_ms[0],
        "series_ms": list(series.series_ms),
        "other_ms": {
            name: {**asdict(ms), "series": list(series.other_ms[name])} for name, ms in graph.other_ms.items()
        },
        "load_ms": dict(series.loads_ms),
        "peak_memory_bytes": series.peak_memory_bytes,
        "layers": dict(series.layers),
        "off_npu": list(series.off_npu),
        "origin": dict(series.origin),
        "cool_down": None if series.cool_down is None else asdict(series.cool_down),
        "before": None if series.before is None else asdict(series.before),
        "after": None if series.after is None else asdict(series.after),
    }
