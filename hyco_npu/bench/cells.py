"""Rows of tables as text, the same on the screen and in the HTML report. Every time is in ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyco_npu.bench.estimate_beside import PAPER_MS
from hyco_npu.bench.result import on_npu
from hyco_npu.bench.runs import warm_up_of
from hyco_npu.bench.summary import GRAPHS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hyco_npu.bench.estimate_beside import EstimateBeside
    from hyco_npu.bench.result import BenchResult
    from hyco_npu.bench.statistics import Interval, Statistics
    from hyco_npu.bench.summary import Comparison, RunSummary

STATISTICS = ("median", "p90", "p99", "min", "max", "n")
ESTIMATE = ("estimate", "lower", "upper", "floor", "measured, median", "factor")
Row = tuple[str, ...]


def interval_text(interval: Interval, digits: int = 3) -> str:
    """`1.234 (1.200 to 1.300)`, or the value alone where there is no interval."""
    value = f"{interval.value:.{digits}f}"
    if interval.low is None or interval.high is None:
        return value
    return f"{value} ({interval.low:.{digits}f} to {interval.high:.{digits}f})"


def statistics_row(statistics: Statistics) -> Row:
    """Median, p90, p99, min, max in ms, and n, as cells."""
    return (
        *(f"{ms:.3f}" for ms in (statistics.median, statistics.p90, statistics.p99, statistics.min, statistics.max)),
        str(statistics.n),
    )


def part_rows(summary: RunSummary) -> Iterator[Row]:
    """The round, each part, and STATISTICS of each."""
    if summary.round_ms is not None:
        yield ("round", *statistics_row(summary.round_ms))
    for name, part in summary.parts.items():
        yield (name, *statistics_row(part))


def facts_of_run(summary: RunSummary) -> list[tuple[str, str]]:
    """What stands below a run's table: (name, value)."""
    label, rows = summary.time_label, []
    if summary.accounted is not None:
        rows.append(("accounted for by the parts", f"{summary.accounted:.1%}"))
    first = ", ".join(f"{ms:.3f}" for ms in summary.first_round_ms)
    rows.append(("first round of each block, not timed", f"{first} ms, {label}"))
    for graph, load in summary.loads.items():
        times = ", ".join(f"{ms:.1f}" for ms in load.load_ms)
        checks = ", ".join(f"{ms:.1f}" for ms in load.verify_ms)
        rows.append((f"load of {graph} ({load.provider})", f"{times} ms, its files' check {checks} ms, {label}"))
    if summary.tokens_per_round is None:
        rows.append(("tokens per round", "not known: the recorded rounds do not carry the text on"))
    else:
        rows.append(("tokens per round, bonus included (95 %)", interval_text(summary.tokens_per_round)))
    if summary.draft_ms_per_token is not None:
        value = f"{summary.draft_ms_per_token:.3f} ms, {label}"
        rows.append(("draft time per token, derived: round median / tokens", value))
    return rows


def comparison_text(comparison: Comparison) -> str:
    """B against A in one sentence."""
    mode = "" if comparison.perf_mode is None else f", {comparison.perf_mode}"
    if comparison.ratio is None:
        return f"B / A{mode}: no ratio, because {comparison.why}"
    pairs = f"{comparison.ratio.n} pairs of rounds in {comparison.block_pairs} pairs of blocks"
    return f"B / A{mode}: {interval_text(comparison.ratio)} times the median of A; 95 %, {pairs}"


def estimate_rows(beside: EstimateBeside) -> Iterator[Row]:
    """Each graph of the round and the round itself: ESTIMATE."""
    for graph in beside.graphs:
        estimated = _cells(graph.ms, graph.ms_low, graph.ms_high, graph.floor_ms)
        yield (f"{graph.graph}, one pass", *estimated, *_measured(graph.measured, graph.scale))
    estimated = _cells(beside.round_ms, beside.round_ms_low, beside.round_ms_high, beside.floor_ms)
    yield (f"round: {beside.round_text}", *estimated, *_measured(beside.measured, beside.scale))


def estimate_note(beside: EstimateBeside) -> str:
    """What the rows rest on."""
    note = f"QNN {beside.qnn_version}; floor at {beside.bandwidth_gbps:g} GB/s, an assumption."
    if beside.missing_kinds:
        note += f" The round is not whole: no {' and no '.join(beside.missing_kinds)} bundle."
    if beside.unreliable:
        note += " Unreliable: the compiler has no cost for some operations."
    if beside.scale is None:
        return f"{note} No factor is given: that takes all graphs of the round on a phone's NPU."
    return f"{note} The round's factor is that of its graphs, without the CPU's share."


def paper_rows(result: BenchResult) -> Iterator[Row]:
    """(what, paper, measured median), for a phone's NPU alone."""
    if not on_npu(result):
        return
    first = result.runs[0]
    measured = {GRAPHS["slm"]: "one SLM pass", GRAPHS["mtp"]: "one MTP step"}
    for graph, name in measured.items():
        yield (name, f"{PAPER_MS[graph]:g}", _median(first.graphs.get(graph)))
    yield ("round, keep set of 86K", f"{PAPER_MS['round']:g}", _median(first.round_ms))


def tree_lines(result: BenchResult) -> Iterator[str]:
    """The comparison of the device's trees with the host's."""
    for check in result.measurement.tree_checks:
        if not check.shares:
            yield f"{check.label}: no tree was compared"
            continue
        again = "repeatable" if check.repeatable else "NOT repeatable"
        yield (
            f"{check.label}: {len(check.shares)} trees against the host's ({check.reference}): at least "
            f"{min(check.shares):.1%} of the nodes in common, needed {check.needed:.1%}; {again}"
        )


def about(result: BenchResult) -> list[tuple[str, str]]:
    """What ran where: (name, value)."""
    measurement, runner = result.measurement, result.runs[0].run.runner
    identity = measurement.identity
    told = () if identity is None else (identity.model, identity.soc_model, identity.android_version)
    described = ", ".join(word for word in told if word)
    versions = f"hyco_runner {runner.version} ({runner.abi}), ONNX Runtime {runner.ort_version or 'not told'}"
    rows = [
        ("device", f"{measurement.device} ({described})" if described else measurement.device),
        ("times are of", result.time_label),
        ("on a phone's NPU", result.measured_on_device),
        ("runner", f"{versions}, QNN {runner.qnn_build or 'none'}"),
        ("threads, CPU mask", f"{runner.threads}, {runner.cpu_mask or 'none'}"),
        ("configuration", measurement.config),
    ]
    for pair in measurement.pairs:
        hashes = f"{pair.mtp_sha256[:12]}, {pair.slm_sha256[:12]}"
        rows.append((f"bundles {pair.label}", f"{pair.mtp}, {pair.slm} (manifests {hashes})"))
    rows.append(("recorded rounds", f"{measurement.rounds_file} ({measurement.rounds_sha256[:12]})"))
    rows.append(("warm-up", f"{warm_up_of(measurement)} rounds of each block, not timed"))
    return rows


def block_rows(result: BenchResult) -> Iterator[Row]:
    """BLOCKS of each block; `-`: not told."""
    for place, block in enumerate(result.measurement.blocks):
        thermals = [None if facts is None else facts.thermal for facts in (block.before, block.after)]
        batteries = [None if facts is None else facts.battery for facts in (block.before, block.after)]
        yield (
            str(place),
            block.bundle,
            block.runner.perf_mode or "-",
            "profiled" if block.profiled else "timed",
            str(len(block.rounds)),
            "-" if block.cool_down is None else f"{block.cool_down.waited_s:.0f} s",
            _pair(None if thermal is None else str(thermal.status) for thermal in thermals),
            _pair(_degrees(None if thermal is None else thermal.hottest_c("skin")) for thermal in thermals),
            _pair(None if battery is None else f"{battery.level_percent} %" for battery in batteries),
        )


BLOCKS = ("block", "bundle", "mode", "kind", "rounds", "gate waited", "thermal status", "skin, °C", "battery")


def _pair(values: Iterable[str | None]) -> str:
    """`before > after`."""
    return " > ".join(value or "-" for value in values)


def _degrees(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _cells(*values: float) -> Row:
    return tuple(f"{ms:.3f}" for ms in values)


def _measured(measured: Statistics | None, scale: float | None) -> Row:
    return _median(measured), "-" if scale is None else f"{scale:.3f}"


def _median(statistics: Statistics | None) -> str:
    return "-" if statistics is None else f"{statistics.median:.3f}"
