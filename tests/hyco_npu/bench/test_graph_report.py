"""Figures, sum and verdict of graphs that were measured one by one, against numbers worked out by hand."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from device_runner.facts import Facts, Thermal
from device_runner.graph_series import GraphSeries, GraphsMeasurement
from device_runner.thermal_gate import CoolDown, ThermalReading
from hyco_npu.bench.graph_report import SUM_LABEL, evaluate_graphs, graphs_record, render_graphs

# 11 runs beside the first: median 4.6, p90 4.7 (place 9 of 0..10), p99 at place 9.9: 4.7 + 0.9 * 0.1
STEP_MS = (9.0, 4.6, 4.5, 4.6, 4.7, 4.5, 4.6, 4.8, 4.5, 4.6, 4.5, 4.7)
DRAFT_MS = (50.0, *(38.0, 39.0, 38.5) * 4)


def series(**changes: Any) -> GraphSeries:
    fields: dict[str, Any] = {
        "kind": "mtp",
        "bundle": Path("head"),
        "binary_sha256": "a" * 64,
        "graph": "mtp_step",
        "rows": 1,
        "passes": 4,
        "series_ms": STEP_MS,
        "loads_ms": {"first": 812.3, "warm": 98.7},
        "origin": {"job": "j0", "url": "http://x/jobs/j0/"},
        "peak_memory_bytes": 150_000_000,
        "layers": {"NPU": 3},
    }
    return GraphSeries(**{**fields, **changes})


def measurement(*graphs: GraphSeries) -> GraphsMeasurement:
    return GraphsMeasurement(
        device="hub:Samsung Galaxy S26 Ultra",
        identity=None,
        provider="htp (AI Hub)",
        tool="a job",
        clock="one run",
        inputs="random",
        qnn_runtime="2.51.0",
        graphs=graphs,
    )


DRAFT = series(kind="slm", bundle=Path("slm"), graph="draft", rows=33, passes=1, series_ms=DRAFT_MS)


def test_figures_leave_the_first_run_out() -> None:
    found = graphs_record(evaluate_graphs(measurement(series(other_ms={"qnn": tuple(ms - 1 for ms in STEP_MS)}))))
    (step,) = found["graphs"]  # type: ignore[misc]
    figures = {"median": 4.6, "p90": 4.7, "p99": 4.79, "min": 4.5, "max": 4.8}
    assert {name: step["ms"][name] for name in figures} == pytest.approx(figures)
    assert (step["ms"]["n"], step["first_ms"], step["series_ms"]) == (11, 9.0, list(STEP_MS))
    assert step["other_ms"]["qnn"]["median"] == pytest.approx(3.6)
    assert step["load_ms"] == {"first": 812.3, "warm": 98.7}


def test_the_sum_says_what_it_is() -> None:
    found = graphs_record(evaluate_graphs(measurement(series(), DRAFT)))
    assert found["derived_round"] == {
        "ms": pytest.approx(4 * 4.6 + 38.5),
        "label": SUM_LABEL,
        "parts": {"mtp_step": 4, "draft": 1},
        "lacks": [],
    }
    assert SUM_LABEL == "sum of graph medians, not a measured round; CPU share not included"
    assert (found["valid"], found["round_ms"], found["rounds"], found["schema_version"]) == (True, None, 0, 1)
    assert found["measured_on_device"] == "measured, each graph by itself, not a drafting round"
    assert found["bundle"] == {"mtp": "head", "slm": "slm"}
    json.dumps(found, allow_nan=False)


def test_a_missing_bundle_is_named() -> None:
    assert evaluate_graphs(measurement(DRAFT)).lacks == ("mtp",)


def facts(status: int) -> Facts:
    return Facts(Thermal(status, False, True, ()), None, (), None)


COOL = CoolDown(0.0, (ThermalReading(0.0, 0, None),))


@pytest.mark.parametrize(
    ("changes", "what", "text"),
    [
        ({"layers": {"NPU": 2, "CPU": 1}, "off_npu": ("topk (CPU)",)}, "off_npu", "1 of 3 layers are not .*topk"),
        ({"series_ms": STEP_MS[:10]}, "runs", "9 runs beside the first; the limit is 10"),
        ({"series_ms": tuple(4 + 0.1 * n for n in range(31))}, "drift", r"took 1\.\d+ times the first third"),
        ({"before": facts(0), "after": facts(2), "cool_down": COOL}, "thermal_status", "is 2 after the runs"),
        ({"before": facts(0), "after": facts(0)}, "gate", "without a thermal gate"),
    ],
)
def test_what_makes_the_times_invalid(changes: dict[str, Any], what: str, text: str) -> None:
    result = evaluate_graphs(measurement(series(**changes), DRAFT))
    assert [(reason.what, reason.label) for reason in result.reasons] == [(what, "mtp_step")]
    assert re.search(text, str(result.reasons[0]))
    assert (result.valid, graphs_record(result)["valid"]) == (False, False)
    assert result.measured_on_device.startswith("measured, but invalid, each graph by itself")


def test_a_cool_phone_is_valid() -> None:
    result = evaluate_graphs(measurement(series(before=facts(0), after=facts(0), cool_down=COOL)))
    assert result.valid


@pytest.mark.parametrize("valid", [True, False])
def test_the_screen_shows_verdict_figures_and_label(valid: bool) -> None:
    step = series() if valid else series(layers={"CPU": 1}, off_npu=("a [b] (CPU)",))
    out = io.StringIO()
    render_graphs(Console(file=out, width=200), evaluate_graphs(measurement(step, replace(DRAFT, layers={}))))
    text = out.getvalue()
    assert text.startswith("VALID" if valid else "INVALID")
    assert ("a [b] (CPU)" in text) == (not valid)
    assert f"4 x mtp_step + 1 x draft = 56.900 ms, htp (AI Hub): {SUM_LABEL}" in text
    assert "measured: each graph by itself, not a drafting round" in text
    assert "mtp_step: url: http://x/jobs/j0/" in text
    assert "mtp_step: first run 9.000 ms, load first 812.3 ms, warm 98.7 ms" in text
