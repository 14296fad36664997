"""What a phone tells about itself, from its printed text to numbers with units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from device_runner.facts import (
    Battery,
    Core,
    Sensor,
    Thermal,
    parse_battery,
    parse_cores,
    parse_thermal,
    read_facts,
)
from device_runner.local import LocalTransport
from tests.device_runner.conftest import CALL
from tests.device_runner.samples import BATTERY_TEXT, CPU_FILES, thermal_text

if TYPE_CHECKING:
    from pathlib import Path

    from device_runner.adb import AdbTransport
    from tests.device_runner.phone import Phone


def test_live_sensors_with_their_kinds() -> None:
    assert parse_thermal(thermal_text(status=1, skin_c=38.25)) == Thermal(
        status=1,
        overridden=False,
        live=True,
        sensors=(
            Sensor("AP", "cpu", 31.2, 0),
            Sensor("BAT", "battery", 26.4, 0),
            Sensor("SKIN", "skin", 38.25, 1),
            Sensor("NPU", "npu", 30.5, 0),
            Sensor("LATER", "unknown", 29.0, 0),
        ),
    )


def test_cached_sensors_where_the_hal_gives_none() -> None:
    text = thermal_text().partition("Current temperatures from HAL:")[0]
    thermal = parse_thermal(text)
    assert thermal is not None
    assert not thermal.live
    assert thermal.sensors == (Sensor("SKIN", "skin", 41.5, 0), Sensor("SUBBAT", "battery", 0.0, 0))


def test_a_fixed_status_is_marked() -> None:
    thermal = parse_thermal(thermal_text(override=True))
    assert thermal is not None
    assert thermal.overridden


def test_the_hottest_of_a_kind() -> None:
    sensors = (Sensor("a", "skin", 30.0, 0), Sensor("b", "skin", 33.0, 0), Sensor("c", "cpu", 70.0, 0))
    thermal = Thermal(0, False, True, sensors)
    assert (thermal.hottest_c("skin"), thermal.hottest_c("cpu"), thermal.hottest_c("gpu")) == (33.0, 70.0, None)


@pytest.mark.parametrize("text", ["", "Can't find service: thermalservice\n", "IsStatusOverride: false\n"])
def test_no_thermal_service(text: str) -> None:
    assert parse_thermal(text) is None


def test_battery() -> None:
    assert parse_battery(BATTERY_TEXT) == Battery(84, 32.6, 4063, ("usb",), False)


def test_battery_on_a_scale_of_its_own_and_below_zero() -> None:
    text = BATTERY_TEXT.replace("scale: 100", "scale: 200").replace("temperature: 326", "temperature: -15")
    battery = parse_battery(text.replace("AC powered: false", "AC powered: true"))
    assert battery is not None
    assert (battery.level_percent, battery.temp_c, battery.powered_by) == (42, -1.5, ("ac", "usb"))


def test_a_battery_with_set_values_is_marked() -> None:
    text = BATTERY_TEXT.replace("state:\n", "state:\n  (UPDATES STOPPED -- use 'reset' to restart)\n")
    battery = parse_battery(text)
    assert battery is not None
    assert battery.updates_stopped


def test_no_battery() -> None:
    assert parse_battery("Can't find service: battery\n") is None


def test_cores() -> None:
    cores = parse_cores("".join(f"{name}={value}\n" for name, value in CPU_FILES.items()))
    assert [core.index for core in cores] == list(range(8))
    assert [core.online for core in cores] == [True] * 5 + [False] + [True] * 2
    assert cores[0] == Core(0, True, 791, "walt", 384000, 3532800, 3628800)
    assert cores[7] == Core(7, True, 1024, "walt", 768000, 4319000, 4742400)


def test_cores_whose_clocks_may_not_be_read() -> None:
    assert parse_cores("online=0-1\ncpu1/cpu_capacity=1024\n") == (
        Core(0, True, None, None, None, None, None),
        Core(1, True, 1024, None, None, None, None),
    )


def test_a_host_without_android_has_no_such_facts(tmp_path: Path) -> None:
    facts = read_facts(LocalTransport(tmp_path), CALL)
    assert (facts.thermal, facts.battery) == (None, None)
    assert sum(core.online for core in facts.cores) >= 1


@pytest.mark.adb
def test_all_facts_over_adb(phone: Phone, device: AdbTransport) -> None:
    phone.set_dumpsys("thermalservice", thermal_text())
    phone.set_dumpsys("battery", BATTERY_TEXT)
    for name, value in CPU_FILES.items():
        path = phone.path(f"/sys/devices/system/cpu/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    facts = read_facts(device, CALL)
    assert facts.thermal == parse_thermal(thermal_text())
    assert facts.battery == Battery(84, 32.6, 4063, ("usb",), False)
    assert [core.max_khz for core in facts.cores] == [3628800] * 6 + [4742400] * 2
    assert facts.selinux == "Enforcing"


@pytest.mark.adb
def test_no_facts_over_adb(device: AdbTransport, phone: Phone) -> None:
    phone.set_command("getenforce", "#!/bin/sh\nexit 127\n")
    facts = read_facts(device, CALL)
    assert (facts.thermal, facts.battery, facts.cores, facts.selinux) == (None, None, (), None)
