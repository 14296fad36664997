"""A result as one JSON object, `schema_version` 1; the fields are told in docs/bench-report.md."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from hyco_npu.bench.estimate_beside import PAPER_LABEL, PAPER_MS, SCALE_FORMULA
from hyco_npu.bench.result import on_npu
from hyco_npu.bench.runs import time_label, warm_up_of
from hyco_npu.bench.summary import RATIO_METHOD, TOKENS_METHOD

if TYPE_CHECKING:
    from device_runner.facts import Facts
    from device_runner.measurement import Block, Measurement
    from hyco_npu.bench.estimate_beside import EstimateBeside
    from hyco_npu.bench.result import BenchResult
    from hyco_npu.bench.statistics import Statistics
    from hyco_npu.bench.summary import Comparison, RunSummary

SCHEMA_VERSION = 1


def record(result: BenchResult) -> dict[str, object]:
    """The whole result. A run's own fields stand at the top for bundle pair A in its first performance mode."""
    measurement = result.measurement
    return {
        "schema_version": SCHEMA_VERSION,
        **_run(result, result.runs[0]),
        "valid": result.valid,
        "reasons": [{**asdict(reason), "message": str(reason)} for reason in result.reasons],
        "warnings": list(result.warnings),
        "measured_on_device": result.measured_on_device,
        "device": _device(measurement),
        "config": measurement.config,
        "usb_powered": measurement.usb_powered,
        "rounds_file": {
            "path": str(measurement.rounds_file),
            "sha256": measurement.rounds_sha256,
            "recorded_rounds": measurement.recorded_rounds,
        },
        "warm_up_rounds": warm_up_of(measurement),
        "thermal": _thermal(measurement),
        "trees": _trees(measurement),
        "runs": [_run(result, summary) for summary in result.runs],
        "profiled": [_run(result, summary) for summary in result.profiled],
        "against": _against(result),
        "estimate": None if result.estimate is None else _estimate(result.estimate, result.time_label),
        "paper": {"label": PAPER_LABEL, "ms": dict(PAPER_MS)} if on_npu(result) else None,
        "limits": asdict(result.limits),
        "blocks": [_block(place, block, measurement) for place, block in enumerate(measurement.blocks)],
    }


def figures(statistics: Statistics | None, label: str) -> dict[str, object] | None:
    """A series' figures, named by whose times they are."""
    return None if statistics is None else {**asdict(statistics), "time_label": label}


def _run(result: BenchResult, summary: RunSummary) -> dict[str, object]:
    run, label = summary.run, summary.time_label
    tokens = summary.tokens_per_round
    return {
        "label": run.label,
        "perf_mode": run.perf_mode,
        "provider": run.runner.provider,
        "time_label": label,
        "runner": asdict(run.runner),
        "bundle": _bundle(result.measurement, run.label),
        "valid": not any(reason.concerns(run.label, run.perf_mode) for reason in result.reasons),
        "rounds": len(run.timed_rounds),
        "round_ms": figures(summary.round_ms, label),
        "parts": {name: figures(part, label) for name, part in summary.parts.items()},
        "graphs": {name: figures(graph, label) for name, graph in summary.graphs.items()},
        "accounted": summary.accounted,
        "first_round_ms": list(summary.first_round_ms),
        "load_ms": {graph: asdict(load) for graph, load in summary.loads.items()},
        "tokens_per_round": None if tokens is None else {**asdict(tokens), "method": TOKENS_METHOD},
        "draft_ms_per_token": _derived(summary.draft_ms_per_token, label),
        "block_numbers": list(run.places),
    }


def _derived(value: float | None, label: str) -> dict[str, object] | None:
    if value is None:
        return None
    return {"value": value, "derived": "median of round_ms / tokens_per_round", "time_label": label}


def _device(measurement: Measurement) -> dict[str, object]:
    identity = None if measurement.identity is None else asdict(measurement.identity)
    return {"name": measurement.device, "identity": identity}


def _bundle(measurement: Measurement, label: str) -> dict[str, object]:
    pair = next(pair for pair in measurement.pairs if pair.label == label)
    return {
        "label": label,
        "mtp": str(pair.mtp),
        "slm": str(pair.slm),
        "mtp_sha256": pair.mtp_sha256,
        "slm_sha256": pair.slm_sha256,
    }


def _thermal(measurement: Measurement) -> dict[str, object]:
    """The timed blocks' heat in short; `blocks` holds every reading. Null: not told."""
    timed = [block for block in measurement.blocks if not block.profiled]
    thermals = [
        facts.thermal for block in timed for facts in (block.before, block.after) if facts is not None and facts.thermal
    ]
    skins = [skin for thermal in thermals if (skin := thermal.hottest_c("skin")) is not None]
    return {
        "status_max": max((thermal.status for thermal in thermals), default=None),
        "overridden": any(thermal.overridden for thermal in thermals) if thermals else None,
        "skin_c_min": min(skins, default=None),
        "skin_c_max": max(skins, default=None),
        "gated_blocks": sum(block.cool_down is not None for block in timed),
        "timed_blocks": len(timed),
        "waited_s": sum(block.cool_down.waited_s for block in timed if block.cool_down is not None),
    }


def _trees(measurement: Measurement) -> list[dict[str, object]]:
    return [
        {
            "label": check.label,
            "reference": check.reference,
            "compared": len(check.shares),
            "share_min": min(check.shares, default=None),
            "share_median": median(check.shares) if check.shares else None,
            "needed": check.needed,
            "repeatable": check.repeatable,
            "equal": bool(check.shares) and min(check.shares) >= check.needed and check.repeatable,
        }
        for check in measurement.tree_checks
    ]


def _against(result: BenchResult) -> dict[str, object] | None:
    if not result.comparisons:
        return None
    return {
        "bundle": _bundle(result.measurement, "B"),
        "method": RATIO_METHOD,
        "time_label": result.time_label,
        "comparisons": [_comparison(comparison) for comparison in result.comparisons],
    }


def _comparison(comparison: Comparison) -> dict[str, object]:
    ratio = comparison.ratio
    return {
        "perf_mode": comparison.perf_mode,
        "ratio": None if ratio is None else ratio.value,
        "low": None if ratio is None else ratio.low,
        "high": None if ratio is None else ratio.high,
        "pairs_of_rounds": 0 if ratio is None else ratio.n,
        "pairs_of_blocks": comparison.block_pairs,
        "why": comparison.why,
    }


def _estimate(beside: EstimateBeside, label: str) -> dict[str, object]:
    fields = asdict(beside)
    fields["measured"] = figures(beside.measured, label)
    fields["graphs"] = [{**asdict(graph), "measured": figures(graph.measured, label)} for graph in beside.graphs]
    return {**fields, "scale_formula": SCALE_FORMULA}


def _block(place: int, block: Block, measurement: Measurement) -> dict[str, object]:
    warm_up = warm_up_of(measurement)
    return {
        "block": place,
        "label": block.bundle,
        "perf_mode": block.runner.perf_mode,
        "profiled": block.profiled,
        "time_label": time_label(block.runner),
        "runner": asdict(block.runner),
        "loads": [asdict(load) for load in block.loads],
        "cool_down": None if block.cool_down is None else asdict(block.cool_down),
        "before": _facts(block.before),
        "after": _facts(block.after),
        "rounds": [
            {
                "number": sample.number,
                "text": sample.text,
                "warm_up": index < warm_up,
                "start_ns": sample.start_ns,
                "total_ms": sample.total_ms,
                "parts": dict(sample.parts),
                "matched": sample.matched,
            }
            for index, sample in enumerate(block.rounds)
        ],
    }


def _facts(facts: Facts | None) -> dict[str, Any] | None:
    return None if facts is None else asdict(facts)
