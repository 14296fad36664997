"""Every reason comes by one change to a valid measurement, and is not there without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from device_runner.facts import Core
from device_runner.measurement import TreeCheck
from hyco_npu.bench.reasons import Limits, limits_for
from hyco_npu.bench.validity import find_reasons, find_warnings
from quant.errors import UsageError

from .builders import PHONE_CORES, SHARES, STEADY, block, facts, measurement, rounds, runner

if TYPE_CHECKING:
    from device_runner.facts import Facts
    from device_runner.measurement import Block, Measurement

LIMITS = Limits()
CAPPED = (PHONE_CORES[0], replace(PHONE_CORES[1], limit_khz=2_350_000))
RISING = (50.0, *np.linspace(20, 24, 12).tolist())
FALLING = (50.0, *np.linspace(24, 20, 12).tolist())


def whats(made: Measurement, limits: Limits = LIMITS) -> list[str]:
    return [reason.what for reason in find_reasons(made, limits)]


def with_thermal(told: Facts, **changes: Any) -> Facts:
    assert told.thermal is not None
    return replace(told, thermal=replace(told.thermal, **changes))


def two(**changes: Any) -> Measurement:
    """Two blocks of A; the second differs."""
    return measurement(block(), block(**changes))


def checked(**changes: Any) -> Measurement:
    return measurement(block(), tree_checks=(replace(TreeCheck("A", "cpu", (1.0, 0.95), 0.9, True), **changes),))


def mixed(**changes: Any) -> Measurement:
    return two(info=runner(**changes))


def overlapping() -> Measurement:
    samples = list(rounds(STEADY))
    samples[5] = replace(samples[5], start_ns=samples[4].start_ns + 1_000_000)  # its 20.25 ms are not over
    return measurement(block(rounds=tuple(samples)))


def rebooted() -> Measurement:
    made = two()
    late = made.blocks[1]
    early = tuple(replace(sample, start_ns=sample.start_ns - 2 * 10**12) for sample in late.rounds)
    return replace(made, blocks=(made.blocks[0], replace(late, rounds=early)))


@pytest.mark.parametrize("provider", ["htp", "cpu", "simulator"])
def test_a_valid_measurement(provider: str) -> None:
    info = runner(provider)
    made = measurement(*(block(label, info=info) for label in "ABBA"))
    assert find_reasons(made, LIMITS) == ()
    assert find_reasons(measurement(block(info=info)), LIMITS) == ()


CASES: dict[str, tuple[str, Measurement, str]] = {
    "one tree differs": ("trees", checked(shares=(1.0, 0.85)), "1 of 2 trees differ from those of the host (cpu): the "
                         "worst has 0.850 of its nodes in common, the limit is 0.900"),
    "no tree compared": ("trees", checked(shares=()), "were not compared"),
    "no check": ("trees", measurement(block(), tree_checks=()), "were not compared"),
    "other trees later": ("trees_repeat", checked(repeatable=False), "gave other trees in a later pass"),
    "warm before": ("thermal_status", two(before=facts(1), after=facts(1)), "status is 1 (light) before it; the limit "
                    "is 0 (none)"),
    "status by hand": ("thermal_overridden", two(after=with_thermal(facts(), overridden=True)), "fixed by hand at 0"),
    "no gate": ("gate", two(cool_down=None), "block 1: the NPU was timed without a thermal gate"),
    "no facts, no gate": ("gate", two(cool_down=None, before=None, after=None), "without a thermal gate"),
    "slower and slower": ("drift", measurement(block(times=RISING)), "block 0 drift: the last third's median is 1.1"),
    "quicker and quicker": ("drift", measurement(block(times=FALLING)), "limit 1.050 either way"),
    "slower block by block": ("drift", measurement(*(block(times=[50, *[t * f for t in STEADY[1:]]])
                              for f in (1, 1.05, 1.1))), "all 3 blocks in a row drift"),
    "few rounds": ("rounds", measurement(block(times=STEADY[:10])), "9 timed rounds after warm-up; want at least 10"),
    "empty battery": ("battery_low", two(after=facts(level_percent=19)), "the battery is at 19 % after it; the limit "
                      "is 20 %"),
    "battery by hand": ("battery_fixed", two(before=facts(updates_stopped=True)), "fixed by `dumpsys battery set`"),
    "capped core": ("clock_cap", two(after=replace(facts(), cores=CAPPED)), "1 cores are throttled after it: core 6 "
                    "may run at 2350000 kHz of 4700000; the limit is 100%"),
    "another runner": ("versions", mixed(version="0.2.0"), "the runner's version differs between blocks: 0.1.0, 0.2.0"),
    "another ORT": ("versions", mixed(ort_version="1.31.0"), "ONNX Runtime's version differs"),
    "another QNN": ("versions", mixed(qnn_build="v2.49.0"), "QNN's build differs"),
    "other cores": ("versions", mixed(cpu_mask="f0"), "the CPU mask differs"),
    "other threads": ("versions", mixed(threads=4), "number of threads differs"),
    "htp on x86": ("provider", measurement(block(info=runner(abi="x86_64-linux"), cool_down=block().cool_down)),
                   "a build for x86_64-linux, where there is no such NPU"),
    "clock goes back": ("clock", overlapping(), "round 5 of block 0 starts 19.250 ms before the one before it ended"),
    "clock starts anew": ("clock", rebooted(), "round 0 of block 1"),
    "parts missing": ("accounted", measurement(block(rounds=rounds(STEADY, shares={"slm_pass_1": 0.9375}))),
                      "the parts add up to 0.938 of the median round; want at least 0.950"),
    "parts too large": ("parts", measurement(block(rounds=rounds(STEADY, shares={**SHARES, "topk": 0.03}))),
                        "in 12 rounds the parts add up to more than the round"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_change_one_reason(case: str) -> None:
    what, made, text = CASES[case]
    found = find_reasons(made, LIMITS)
    assert {reason.what for reason in found} == {what}
    assert any(text in str(reason) for reason in found)
    for reason in found:
        assert reason.value != reason.limit or reason.value is None


def test_a_status_that_changed_within_the_limit() -> None:
    """With a limit of 1 a status of 1 passes, a change to it does not."""
    limits = Limits(max_thermal_status=1)
    assert whats(two(before=facts(1), after=facts(1)), limits) == []
    (reason,) = find_reasons(two(after=facts(1)), limits)
    assert reason.what == "thermal_changed"
    assert str(reason) == "A, burst: block 1: the thermal status changed from 0 (none) to 1 (light); want no change"
    assert (reason.value, reason.limit, reason.label, reason.perf_mode, reason.block) == (1, 0, "A", "burst", 1)
    assert sorted(whats(two(after=facts(2)))) == ["thermal_changed", "thermal_status"]


@pytest.mark.parametrize(
    ("limits", "case"),
    [
        (Limits(min_rounds=9), "few rounds"),
        (Limits(max_drift=0.25), "slower and slower"),
        (Limits(drift_p=1e-9), "slower and slower"),
        (Limits(min_battery_percent=19), "empty battery"),
        (Limits(min_clock_share=0.5), "capped core"),
        (Limits(min_accounted=0.9375), "parts missing"),
    ],
)
def test_limits_can_be_moved(limits: Limits, case: str) -> None:
    assert whats(CASES[case][1], limits) == []


@pytest.mark.parametrize(
    "wrong",
    [{"min_rounds": 0}, {"max_drift": -0.1}, {"max_drift": float("nan")}, {"max_thermal_status": -1}],
)
def test_limits_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="limits are"):
        Limits(**wrong)


def test_the_first_round_is_warm_up_and_no_drift() -> None:
    """Without warm-up a block's first round is not timed either: 50 times as long, it is neither drift nor a figure."""
    made = measurement(block(times=[1000, *STEADY[1:]]), warm_up_rounds=0)
    assert whats(made) == []


def test_profiled_blocks_are_not_judged_as_timing() -> None:
    """Heat and slowness while profiling are no reason, another runner is."""
    slow = block(times=RISING, profiled=True, before=facts(2), after=facts(3), cool_down=None)
    assert whats(measurement(block(), slow)) == []
    assert whats(measurement(block(), replace(slow, runner=runner(version="9")))) == ["versions"]


def test_offline_and_silent_cores_are_not_throttled() -> None:
    cores = (Core(0, False, None, None, None, 1, 2), Core(1, True, None, None, None, None, 2), *PHONE_CORES)
    assert whats(two(after=replace(facts(), cores=cores))) == []


def test_only_one_bundles_trees_differ() -> None:
    checks = (TreeCheck("A", "cpu", (1.0,), 0.9, True), TreeCheck("B", "cpu", (0.5,), 0.9, True))
    (reason,) = find_reasons(measurement(block("A"), block("B"), tree_checks=checks), LIMITS)
    assert reason.concerns("B", "burst")
    assert not reason.concerns("A", "burst")


def test_many_flat_noisy_blocks_are_seldom_flagged() -> None:
    """16 blocks of 30 rounds with 10 % of noise: at most 2 % of such measurements, whatever the number of blocks."""
    rng = np.random.default_rng(5)
    flagged = 0
    for _ in range(30):
        blocks = [block(label, [50, *np.exp(rng.normal(3, 0.1, 30)).tolist()]) for label in "ABBA" * 4]
        flagged += bool(whats(measurement(*blocks)))
    assert flagged <= 4  # 5 or more of 30 come at 2 % once in three thousand


def warnings(*blocks: Block, **changes: Any) -> str:
    return "\n".join(find_warnings(measurement(*blocks, **changes)))


def test_a_phone_that_tells_all_gives_no_warning() -> None:
    assert warnings(block()) == ""


def test_what_is_not_told_is_a_warning() -> None:
    blind = replace(facts(), thermal=None, battery=None, cores=())
    text = warnings(block(before=blind))
    for fact in ("thermal status", "battery", "cores' clocks"):
        assert f"the device does not tell: {fact} (1 of 2 readings)" in text
    assert "skin temperature" in warnings(block(before=with_thermal(facts(), sensors=())))
    assert "read only once for block 0" in warnings(block(after=None))
    assert whats(measurement(block(before=blind))) == []


def test_power_readings_are_labelled() -> None:
    assert "fed by USB: the battery's readings are not what the phone consumes" in warnings(block(), usb_powered=True)
    assert "whether USB fed the phone is not known" in warnings(block(), usb_powered=None)
    assert whats(measurement(block(), usb_powered=True)) == []


@pytest.mark.parametrize("provider", ["cpu", "simulator"])
def test_without_a_gate_off_the_npu(provider: str) -> None:
    text = warnings(block(info=runner(provider)))
    assert "no thermal gate" in text
    assert "heat, battery and clocks of this device are not known" in text


def test_no_truth_and_short_blocks_are_warnings() -> None:
    text = warnings(block(rounds=rounds(STEADY[:9], matched=lambda _: None)))
    assert "tokens per round are not known" in text
    assert "A, burst: fewer than 9 timed rounds in block 0: drift within it is not tested" in text


def test_one_round_that_was_interrupted_does_not_count_as_parts_missing() -> None:
    made = block(info=runner("cpu"))
    stopped = made.rounds[4]
    late = replace(stopped, total_ms=stopped.total_ms + 1000)
    after = tuple(replace(one, start_ns=one.start_ns + 10**9) for one in made.rounds[5:])
    assert find_reasons(measurement(replace(made, rounds=(*made.rounds[:4], late, *after))), LIMITS) == ()


def test_a_host_may_drift_further_than_a_phone_unless_it_is_told() -> None:
    assert limits_for("htp", {}) == Limits()
    assert limits_for("cpu", {}).max_drift == limits_for("simulator", {}).max_drift == 0.2
    assert limits_for("cpu", {"max_drift": 0.01, "min_rounds": 3}) == Limits(max_drift=0.01, min_rounds=3)
