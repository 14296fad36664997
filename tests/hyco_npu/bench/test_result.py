"""Figures of measurements whose figures are known by hand, and the JSON they become."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from device_runner.measurement import GraphLoad
from hyco_npu.bench.errors import MeasurementError
from hyco_npu.bench.reasons import Limits
from hyco_npu.bench.result import BenchResult, evaluate

from .builders import SHARES, SLOW_FIRST, STEADY, block, estimate, facts, measurement, pair, rounds, runner

FEW = Limits(min_rounds=5)
LABELS = {
    ("htp", "arm64-v8a"): ("phone NPU (htp)", "measured"),
    ("cpu", "x86_64-linux"): ("x86 CPU (cpu), not a phone", "not measured"),
    ("simulator", "x86_64-linux"): ("x86 HTP simulator, not a phone", "not measured"),
    ("cpu", "aarch64-linux"): ("aarch64 CPU (cpu), not a phone", "not measured"),
    ("cpu", "arm64-v8a"): ("phone CPU (cpu), not its NPU", "not measured"),
    ("htp", "x86_64-linux"): ("x86 CPU (htp), not a phone", "not measured"),
}


def strict(result: BenchResult) -> dict[str, Any]:
    """The JSON, through its text: NaN, infinities and what JSON does not have are errors."""
    read: dict[str, Any] = json.loads(json.dumps(result.to_json(), allow_nan=False))
    return read


def test_a_slow_first_round_is_kept_apart() -> None:
    """Case 56: 1000, 10, 10, 11, 10, 10 ms are a median of 10, not a mean of 175; the first round stays in the data."""
    result = evaluate(measurement(block(times=SLOW_FIRST)), FEW)
    told = strict(result)
    assert told["round_ms"] == {
        "median": 10.0, "p90": pytest.approx(10.6), "p99": pytest.approx(10.96), "min": 10.0, "max": 11.0, "n": 5,
        "time_label": "phone NPU (htp)",
    }  # fmt: skip
    assert told["first_round_ms"] == [1000.0]
    assert told["rounds"] == 5
    series = told["blocks"][0]["rounds"]
    assert [sample["total_ms"] for sample in series] == [*SLOW_FIRST]
    assert [sample["warm_up"] for sample in series] == [True, False, False, False, False, False]
    assert "mean" not in told["round_ms"]
    assert result.valid


def test_parts_of_a_round() -> None:
    """Each part has the round's figures times its share; `other` is the 1/64 that no part covers."""
    result = evaluate(measurement(block(times=SLOW_FIRST)), FEW)
    told = strict(result)
    assert [*told["parts"]] == ["mtp_step_1", "mtp_step_2", "slm_pass_1", "tables", "tree", "other"]
    for name, share in {**SHARES, "other": 1 / 64}.items():
        part = told["parts"][name]
        assert part["median"] == pytest.approx(10 * share)
        assert part["p90"] == pytest.approx(10.6 * share)
        assert (part["min"], part["max"], part["n"]) == (pytest.approx(10 * share), pytest.approx(11 * share), 5)
        assert part["time_label"] == "phone NPU (htp)"
    assert told["accounted"] == pytest.approx(63 / 64)
    assert told["graphs"]["mtp_step"]["n"] == 10
    assert told["graphs"]["mtp_step"]["median"] == 1.25
    assert told["graphs"]["slm_pass"]["n"] == 5


def test_parts_that_few_rounds_have() -> None:
    """A prefill in one round of a text is described over that round, steps stand in the order of their numbers."""
    samples = list(rounds(STEADY, shares={"mtp_step_10": 0.25, "tree": 0.25, "mtp_step_2": 0.25, "slm_pass_1": 0.25}))
    samples[3] = replace(samples[3], parts={**samples[3].parts, "tree": 1.0, "prefill": 2.0})
    told = strict(evaluate(measurement(block(rounds=tuple(samples)))))
    assert [*told["parts"]] == ["mtp_step_2", "mtp_step_10", "slm_pass_1", "tree", "prefill", "other"]
    assert told["parts"]["prefill"]["n"] == 1
    assert told["parts"]["prefill"]["median"] == 2.0
    assert told["parts"]["tree"]["n"] == 12


def test_warm_up_of_every_block() -> None:
    """Three rounds of each block are not timed; both blocks' others are one series."""
    made = measurement(block(times=[90, 80, 70, *range(1, 7)]), block(times=[60, 50, 40, *range(7, 11)]))
    told = strict(evaluate(replace(made, warm_up_rounds=3), Limits(max_drift=100)))
    assert (told["round_ms"]["median"], told["round_ms"]["p90"], told["rounds"]) == (5.5, pytest.approx(9.1), 10)
    assert told["first_round_ms"] == [90.0, 60.0]
    assert told["warm_up_rounds"] == 3


def test_loads_are_apart() -> None:
    cold = block(loads=(GraphLoad("mtp_step", "htp", 900.0, 30.0),))
    told = strict(evaluate(measurement(cold, replace(cold, loads=(GraphLoad("mtp_step", "htp", 15.0, 3.0),)))))
    assert told["load_ms"] == {"mtp_step": {"provider": "htp", "load_ms": [900.0, 15.0], "verify_ms": [30.0, 3.0]}}


def test_tokens_per_round_count_a_recorded_round_once() -> None:
    """0, 1, 2, 3 matched in turn and the bonus: 2.5 tokens. More passes and blocks are the same recorded rounds."""
    times = [50, *[20.0] * 15]
    made = measurement(block(times=times), block(times=times), recorded_rounds=8)
    result = evaluate(made)
    tokens = strict(result)["tokens_per_round"]
    assert (tokens["value"], tokens["n"]) == (2.5, 8)
    eight = np.array([1, 2, 3, 4] * 2)
    assert 2.5 - 3 * eight.std() / np.sqrt(8) < tokens["low"] < 2.5 < tokens["high"] < 2.5 + 3 * eight.std() / 8**0.5
    assert strict(evaluate(replace(made, recorded_rounds=None)))["tokens_per_round"]["n"] == 16
    per_token = strict(result)["draft_ms_per_token"]
    assert per_token["value"] == 8.0
    assert "derived" in per_token


def test_rounds_without_the_truth() -> None:
    told = strict(evaluate(measurement(block(rounds=rounds(STEADY, matched=lambda _: None)))))
    assert told["tokens_per_round"] is None
    assert told["draft_ms_per_token"] is None
    half = strict(evaluate(measurement(block(rounds=rounds(STEADY, matched=lambda n: 3 if n < 2 else None)))))
    assert (half["tokens_per_round"]["value"], half["tokens_per_round"]["n"]) == (4.0, 2)


def test_profiled_rounds_are_no_timing() -> None:
    timed = strict(evaluate(measurement(block())))
    both = strict(evaluate(measurement(block(), block(times=[900.0] * 13, profiled=True))))
    assert both["round_ms"] == timed["round_ms"]
    assert both["runs"] == timed["runs"]
    assert [run["round_ms"]["median"] for run in both["profiled"]] == [900.0]
    assert [one["profiled"] for one in both["blocks"]] == [False, True]


def test_runs_by_bundle_and_performance_mode() -> None:
    order = [("B", "burst", 30), ("A", "balanced", 40), ("A", "burst", 20), ("B", "balanced", 50)]
    blocks = [block(label, [99, *[ms] * 12], info=runner(perf_mode=mode)) for label, mode, ms in order]
    told = strict(evaluate(measurement(*blocks)))
    found = [(run["label"], run["perf_mode"], run["round_ms"]["median"]) for run in told["runs"]]
    assert found == [("A", "balanced", 40), ("A", "burst", 20), ("B", "burst", 30), ("B", "balanced", 50)]
    assert (told["label"], told["perf_mode"], told["round_ms"]["median"]) == found[0]
    assert told["bundle"]["mtp_sha256"] == "a" * 64
    ratios = {one["perf_mode"]: one["ratio"] for one in told["against"]["comparisons"]}
    assert ratios == {"balanced": 1.25, "burst": 1.5}
    assert told["against"]["bundle"]["slm"] == "slm-b.bundle"


def test_b_against_a_pairs_rounds_of_one_number() -> None:
    """B is 0.9 of A in every round of a number that both have; its further rounds are of no pair."""
    a, b = block("A", STEADY), block("B", [*(0.9 * ms for ms in STEADY), 300.0])
    (one,) = strict(evaluate(measurement(a, b, b, a)))["against"]["comparisons"]
    assert (one["ratio"], one["low"], one["high"]) == pytest.approx((0.9, 0.9, 0.9))
    assert (one["pairs_of_rounds"], one["pairs_of_blocks"], one["why"]) == (24, 2, None)


def test_no_ratio_of_what_is_not_valid() -> None:
    hot = block("B", before=facts(2), after=facts(2))
    (one,) = strict(evaluate(measurement(block("A"), hot)))["against"]["comparisons"]
    assert (one["ratio"], one["low"], one["why"]) == (None, None, "B did not run validly")
    modes = strict(evaluate(measurement(block("A"), block("B", info=runner(perf_mode="balanced")))))["against"]
    assert [found["why"] for found in modes["comparisons"]] == [
        "only A ran in this performance mode", "only B ran in this performance mode"
    ]  # fmt: skip
    assert strict(evaluate(measurement(block("A"))))["against"] is None


def test_a_hot_mode_leaves_the_other_valid() -> None:
    cool, hot = block(), block(info=runner(perf_mode="balanced"), before=facts(2), after=facts(2))
    result = evaluate(measurement(cool, hot))
    told = strict(result)
    assert not result.valid
    assert (told["valid"], told["runs"][0]["valid"], told["runs"][1]["valid"]) == (False, True, False)
    assert told["measured_on_device"] == "measured, but invalid"
    assert [reason["what"] for reason in told["reasons"]] == ["thermal_status", "thermal_status"]
    assert told["reasons"][0]["message"] == str(result.reasons[0])
    assert told["reasons"][0]["value"] == 2
    assert told["reasons"][0]["limit"] == 0


@pytest.mark.parametrize(("provider", "abi"), LABELS)
def test_whose_times(provider: str, abi: str) -> None:
    result = evaluate(measurement(block(info=runner(provider, abi=abi))))
    told = strict(result)
    label, measured = LABELS[provider, abi]
    assert (told["time_label"], told["measured_on_device"]) == (label, measured)
    assert told["provider"] == result.provider == provider
    assert told["round_ms"]["time_label"] == label
    assert told["blocks"][0]["time_label"] == label
    assert (told["paper"] is None) == (label != "phone NPU (htp)")


def test_the_fields_that_a_script_needs() -> None:
    told = strict(evaluate(measurement(block("A"), block("B"), usb_powered=True, recorded_rounds=13)))
    assert told["schema_version"] == 1
    assert told["device"]["name"] == "R5CX 1:2"
    assert told["device"]["identity"]["soc_model"] == "SM8850"
    assert told["usb_powered"] is True
    assert told["rounds_file"] == {"path": "rounds.safetensors", "sha256": "c" * 64, "recorded_rounds": 13}
    assert told["thermal"] == {
        "status_max": 0, "overridden": False, "skin_c_min": 30.0, "skin_c_max": 33.0, "gated_blocks": 2,
        "timed_blocks": 2, "waited_s": 0.0,
    }  # fmt: skip
    assert told["trees"][0] == {
        "label": "A", "reference": "simulator", "compared": 2, "share_min": 0.97, "share_median": pytest.approx(0.985),
        "needed": 0.9, "repeatable": True, "equal": True,
    }  # fmt: skip
    assert told["blocks"][0]["before"]["battery"]["level_percent"] == 80
    assert told["blocks"][0]["before"]["cores"][0]["governor"] == "walt"
    assert told["blocks"][0]["cool_down"]["readings"] == [{"after_s": 0.0, "status": 0, "skin_c": 30.0}]
    assert told["runner"]["ort_version"] == "1.32.0"
    assert told["limits"]["min_rounds"] == 10


def test_what_a_device_does_not_tell_is_null() -> None:
    told = strict(evaluate(measurement(block(info=runner("cpu")))))
    assert told["thermal"] == {
        "status_max": None, "overridden": None, "skin_c_min": None, "skin_c_max": None, "gated_blocks": 0,
        "timed_blocks": 1, "waited_s": 0,
    }  # fmt: skip
    one = told["blocks"][0]
    assert (one["before"], one["after"], one["cool_down"]) == (None, None, None)
    assert (told["device"]["identity"], told["usb_powered"], told["runner"]["qnn_build"]) == (None, None, None)
    assert told["estimate"] is None


def test_a_run_without_timed_rounds() -> None:
    """One round is all warm-up: no figures and a reason, not a crash."""
    told = strict(evaluate(measurement(block(times=[50.0]))))
    assert (told["valid"], told["round_ms"], told["accounted"], told["parts"]) == (False, None, None, {})
    assert {reason["what"] for reason in told["reasons"]} == {"rounds"}
    empty = strict(evaluate(measurement(block("A", rounds=()), block("B"))))
    assert empty["first_round_ms"] == []
    assert empty["against"]["comparisons"][0]["why"] == "A did not run validly"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (measurement(), "no timed block"),
        (measurement(block(profiled=True)), "no timed block"),
        (
            measurement(block(rounds=(replace(rounds([50.0])[0], total_ms=float("nan")),))),
            "block 0, round 0: took nan ms",
        ),
        (measurement(block(rounds=rounds([50, 0.0]))), "took 0.0 ms"),
        (measurement(block(rounds=rounds([50, 20], shares={"tree": -0.1}))), "block 0, round 0, part tree: -5.0 ms"),
        (measurement(block(rounds=rounds([50, 20], shares={"other": 0.1}))), "this name is kept"),
        (measurement(block(loads=(GraphLoad("g", "htp", float("inf"), 0.0),))), "load of g: inf ms"),
        (measurement(block("A"), pairs=(pair("B"),)), "of bundle 'A'; the run has"),
    ],
)
def test_measurements_that_are_none(broken: Any, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        evaluate(broken)


def test_the_estimate_beside() -> None:
    """2.5 ms measured a step against 2, 10 ms a pass against 8: (4 x 2.5 + 10) / (4 x 2 + 8) = 1.25."""
    told = strict(evaluate(measurement(block()), estimate=estimate()))["estimate"]
    assert (told["round_ms"], told["round_ms_low"], told["round_ms_high"]) == pytest.approx((16.0, 14.4, 17.6))
    assert told["floor_ms"] == pytest.approx(8.0)
    assert told["measured"]["median"] == 20.0
    step, draft = told["graphs"]
    assert (step["graph"], step["passes"], step["ms"], step["measured"]["median"]) == ("mtp_step", 4, 2.0, 2.5)
    assert (draft["graph"], draft["passes"], draft["ms"], draft["measured"]["median"]) == ("slm_draft", 1, 8.0, 10.0)
    assert (step["scale"], draft["scale"], told["scale"]) == pytest.approx((1.25, 1.25, 1.25))


def test_the_factor_is_against_the_unscaled_estimate() -> None:
    told = strict(evaluate(measurement(block()), estimate=estimate(scale=3.0)))["estimate"]
    assert told["round_ms"] == pytest.approx(48.0)
    assert told["applied_scale"] == 3.0
    assert (told["scale"], told["graphs"][0]["scale"]) == pytest.approx((1.25, 1.25))


def test_unequal_graphs_weigh_by_their_passes() -> None:
    """3 ms a step (x 1.5), 4 ms a pass (x 0.5): (4 x 3 + 4) / 16 = 1."""
    times = [50, *[20.0] * 12]
    made = measurement(block(rounds=rounds(times, shares={"mtp_step_1": 0.15, "slm_pass_1": 0.2, "tree": 0.64})))
    told = strict(evaluate(made, estimate=estimate()))["estimate"]
    assert [graph["scale"] for graph in told["graphs"]] == pytest.approx([1.5, 0.5])
    assert told["scale"] == pytest.approx(1.0)


@pytest.mark.parametrize("provider", ["cpu", "simulator"])
def test_no_factor_off_the_npu(provider: str) -> None:
    told = strict(evaluate(measurement(block(info=runner(provider))), estimate=estimate()))["estimate"]
    assert told["scale"] is None
    assert [graph["scale"] for graph in told["graphs"]] == [None, None]
    assert told["measured"]["time_label"] != "phone NPU (htp)"


def test_the_papers_figures_are_beside_not_among() -> None:
    told = strict(evaluate(measurement(block()), estimate=estimate()))
    assert told["paper"] == {
        "label": "paper, Galaxy S26 Ultra, derived", "ms": {"slm_pass": 38.0, "mtp_step": 4.7, "round": 52.9}
    }  # fmt: skip
