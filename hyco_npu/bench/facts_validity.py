"""Heat, battery and clocks of a phone against the limits, before and after each timed block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_runner.facts import STATUS_NAMES
from hyco_npu.bench.reasons import Limits, Reason, WarningText
from hyco_npu.bench.runs import runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from device_runner.facts import Core, Facts
    from device_runner.measurement import Block, Measurement
    from hyco_npu.bench.runs import Run

_NOT_TOLD: dict[str, Callable[[Facts], bool]] = {
    "thermal status": lambda facts: facts.thermal is None,
    "skin temperature": lambda facts: facts.thermal is not None and facts.thermal.hottest_c("skin") is None,
    "battery": lambda facts: facts.battery is None,
    "cores' clocks": lambda facts: not any(_limited(core) for core in facts.cores),
}


def fact_reasons(run: Run, limits: Limits) -> Iterator[Reason]:
    """What the phone's facts hold against a run; nothing where the device has none."""
    for place, block in zip(run.places, run.blocks, strict=True):
        for what, text, value, limit in _block_reasons(block, limits):
            yield Reason(what, f"block {place}: {text}", value, limit, run.label, run.perf_mode, place)


def fact_warnings(measurement: Measurement) -> Iterator[WarningText]:
    """What the device did not tell, and what it told that weakens the figures."""
    timed = [
        (place, block) for run in runs_of(measurement) for place, block in zip(run.places, run.blocks, strict=True)
    ]
    readings = [facts for _, block in timed for facts in (block.before, block.after) if facts is not None]
    if any(block.cool_down is None and block.runner.provider != "htp" for _, block in timed):
        yield "no thermal gate: nothing waited for the device to be cool"
    if not readings:
        yield "heat, battery and clocks of this device are not known"
        return
    half = [place for place, block in timed if (block.before is None) != (block.after is None)]
    if half:
        yield f"heat, battery and clocks were read only once for block {', '.join(map(str, half))}"
    for fact, missing in _NOT_TOLD.items():
        count = sum(map(missing, readings))
        if count:
            yield f"the device does not tell: {fact} ({count} of {len(readings)} readings)"
    if measurement.usb_powered:
        yield "fed by USB: the battery's readings are not what the phone consumes"
    elif measurement.usb_powered is None:
        yield "whether USB fed the phone is not known: take any power reading as fed by USB"


_Found = tuple[str, str, float | str | bool | None, float | str | bool | None]


def _block_reasons(block: Block, limits: Limits) -> Iterator[_Found]:
    if block.cool_down is None and block.runner.provider == "htp":
        yield "gate", "the NPU was timed without a thermal gate", False, True
    yield from _changed_status(block)
    for when, facts in (("before", block.before), ("after", block.after)):
        if facts is not None:
            yield from _heat(when, facts, limits)
            yield from _battery(when, facts, limits)
            yield from _clocks(when, facts, limits)


def _changed_status(block: Block) -> Iterator[_Found]:
    before = None if block.before is None else block.before.thermal
    after = None if block.after is None else block.after.thermal
    if before is not None and after is not None and before.status != after.status:
        text = f"the thermal status changed from {_status(before.status)} to {_status(after.status)}; want no change"
        yield "thermal_changed", text, after.status, before.status


def _heat(when: str, facts: Facts, limits: Limits) -> Iterator[_Found]:
    if facts.thermal is None:
        return
    status, limit = facts.thermal.status, limits.max_thermal_status
    if status > limit:
        text = f"the thermal status is {_status(status)} {when} it; the limit is {_status(limit)}"
        yield "thermal_status", text, status, limit
    if facts.thermal.overridden:
        text = f"the thermal status {when} it is fixed by hand at {status}; want the real one"
        yield "thermal_overridden", text, True, False


def _battery(when: str, facts: Facts, limits: Limits) -> Iterator[_Found]:
    if facts.battery is None:
        return
    level, limit = facts.battery.level_percent, limits.min_battery_percent
    if level < limit:
        text = f"the battery is at {level} % {when} it; the limit is {limit} %, below which Android may save power"
        yield "battery_low", text, level, limit
    if facts.battery.updates_stopped:
        text = f"the battery's values {when} it are fixed by `dumpsys battery set`; want the real ones"
        yield "battery_fixed", text, True, False


def _clocks(when: str, facts: Facts, limits: Limits) -> Iterator[_Found]:
    capped = [core for core in facts.cores if _limited(core) and _share(core) < limits.min_clock_share]
    if capped:
        worst = min(capped, key=_share)
        text = (
            f"{len(capped)} cores are throttled {when} it: core {worst.index} may run at {worst.limit_khz} kHz of "
            f"{worst.max_khz}; the limit is {limits.min_clock_share:.0%}"
        )
        yield "clock_cap", text, _share(worst), limits.min_clock_share


def _limited(core: Core) -> bool:
    """Whether an online core tells both its clocks' limits."""
    return core.online and core.limit_khz is not None and bool(core.max_khz)


def _share(core: Core) -> float:
    assert core.limit_khz is not None
    assert core.max_khz
    return core.limit_khz / core.max_khz


def _status(status: int) -> str:
    return f"{status} ({STATUS_NAMES[status] if status < len(STATUS_NAMES) else 'unknown'})"
