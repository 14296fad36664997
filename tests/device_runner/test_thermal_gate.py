"""The gate on a clock of our own and a phone that cools as a recording says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from device_runner.errors import FactError, ThermalGateError
from device_runner.recorded import SCHEMA, RecordedTransport
from device_runner.thermal_gate import ThermalGate, ThermalReading, wait_until_cool
from quant.errors import UsageError
from tests.device_runner.samples import thermal_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Clock:
    """Time that passes by sleeping only."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def phone_saying(tmp_path: Path) -> Callable[..., RecordedTransport]:
    """A phone that prints these texts for one `dumpsys thermalservice` after the other."""

    def make(*texts: str) -> RecordedTransport:
        key = {"argv": ["dumpsys", "thermalservice"], "cwd": None, "env": {}}
        calls = [
            {"call": "shell", "key": key, "result": {"exit_code": 0, "stdout": text, "stderr": ""}} for text in texts
        ]
        header = {"schema": SCHEMA, "name": "R3CT1", "work_dir": "/data/local/tmp"}
        file = tmp_path / "session.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in [header, *calls]))
        return RecordedTransport(file)

    return make


def test_a_cool_phone_passes_at_once(phone_saying: Callable[..., RecordedTransport]) -> None:
    clock = Clock()
    cooled = wait_until_cool(phone_saying(thermal_text(0, 27.0)), ThermalGate(), clock)
    assert (cooled.waited_s, cooled.readings, clock.slept) == (0.0, (ThermalReading(0.0, 0, 27.0),), [])


def test_a_warm_phone_is_waited_for_and_the_wait_is_recorded(phone_saying: Callable[..., RecordedTransport]) -> None:
    clock = Clock()
    phone = phone_saying(thermal_text(2, 41.0), thermal_text(1, 38.0), thermal_text(0, 35.0))
    cooled = wait_until_cool(phone, ThermalGate(poll_s=10.0), clock)
    assert cooled.waited_s == 20.0
    assert cooled.readings == (
        ThermalReading(0.0, 2, 41.0),
        ThermalReading(10.0, 1, 38.0),
        ThermalReading(20.0, 0, 35.0),
    )
    assert clock.slept == [10.0, 10.0]


def test_the_skin_may_be_a_limit_too(phone_saying: Callable[..., RecordedTransport]) -> None:
    phone = phone_saying(thermal_text(0, 33.1), thermal_text(0, 33.0))
    assert wait_until_cool(phone, ThermalGate(max_skin_c=33.0), Clock()).waited_s == 10.0


def test_a_skin_limit_without_a_sensor_is_not_met(phone_saying: Callable[..., RecordedTransport]) -> None:
    phone = phone_saying("Thermal Status: 0\n")
    with pytest.raises(ThermalGateError, match="no skin sensor"):
        wait_until_cool(phone, ThermalGate(max_skin_c=33.0, timeout_s=0.0), Clock())


def test_a_phone_that_stays_warm_is_an_error(phone_saying: Callable[..., RecordedTransport]) -> None:
    clock = Clock()
    phone = phone_saying(*[thermal_text(3, 45.5)] * 5)
    with pytest.raises(ThermalGateError, match=r"status 3 \(severe\), skin 45\.5 °C, after 35 s"):
        wait_until_cool(phone, ThermalGate(timeout_s=35.0, poll_s=10.0), clock)
    assert phone.remaining == 0
    assert clock.slept == [10.0, 10.0, 10.0, 5.0]


def test_a_time_shorter_than_the_interval_is_waited_too(phone_saying: Callable[..., RecordedTransport]) -> None:
    phone = phone_saying(thermal_text(1), thermal_text(0))
    assert wait_until_cool(phone, ThermalGate(timeout_s=4.0, poll_s=10.0), Clock()).waited_s == 4.0


def test_a_phone_that_does_not_tell_is_an_error(phone_saying: Callable[..., RecordedTransport]) -> None:
    with pytest.raises(FactError, match="no thermal status"):
        wait_until_cool(phone_saying("Can't find service: thermalservice\n"), ThermalGate(), Clock())


def test_a_status_fixed_by_hand_is_an_error(phone_saying: Callable[..., RecordedTransport]) -> None:
    with pytest.raises(FactError, match="thermalservice reset"):
        wait_until_cool(phone_saying(thermal_text(override=True)), ThermalGate(), Clock())


@pytest.mark.parametrize("change", [{"max_status": -1}, {"timeout_s": -1.0}, {"poll_s": 0.0}])
def test_a_gate_that_makes_no_sense(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="not negative"):
        ThermalGate(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("skin_c", [float("nan"), float("inf")])
def test_a_skin_limit_that_is_no_temperature(skin_c: float) -> None:
    with pytest.raises(UsageError, match="give a temperature"):
        ThermalGate(max_skin_c=skin_c)
