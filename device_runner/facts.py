"""What a measurement must know of the phone it ran on: heat, battery, clocks, SELinux, cores.

A parser takes the text of a command and gives None where the text holds no such fact (an old Android, a host without
`dumpsys`); a reader runs the command. Facts that a shell user may not read are None, never a guess. This module does
not judge them: `device_runner.thermal_gate` waits for a cool phone, the benchmark says what makes a run invalid.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.transport import Command, Timeout, Transport, script

if TYPE_CHECKING:
    from collections.abc import Mapping

# The sensors' types of android.hardware.thermal, TemperatureType.aidl.
_SENSOR_KINDS = {
    0: "cpu",
    1: "gpu",
    2: "battery",
    3: "skin",
    4: "usb_port",
    5: "power_amplifier",
    9: "npu",
    10: "tpu",
    11: "display",
    12: "modem",
    13: "soc",
}
# Types 6 to 8 (battery current limit) share the list but are volts, amperes and per cent.
_NO_TEMPERATURE = (6, 7, 8)
STATUS_NAMES = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
"""What a thermal status means: android.os.PowerManager, THERMAL_STATUS_*."""

_STATUS = re.compile(r"^\s*Thermal Status: (\d+)\s*$", re.MULTILINE)
_SENSOR = re.compile(r"Temperature\{(?P<fields>[^}]*)\}")
_LIVE, _CACHED = "Current temperatures from HAL:", "Cached temperatures:"
_POWERED = re.compile(r"^\s*(AC|USB|Wireless|Dock) powered: true\s*$", re.MULTILINE)

# $1 is the folder of the CPUs; values come as PATH=VALUE, one a line, unreadable ones not at all.
_CPU_SCRIPT = """
cd "$1" || exit 0
for f in online cpu[0-9]*/cpu_capacity cpu[0-9]*/cpufreq/scaling_governor cpu[0-9]*/cpufreq/scaling_cur_freq \\
    cpu[0-9]*/cpufreq/scaling_max_freq cpu[0-9]*/cpufreq/cpuinfo_max_freq; do
  if [ -r "$f" ] && IFS= read -r v < "$f"; then echo "$f=$v"; fi
done 2>/dev/null
:
"""
_CPU_FOLDER = "/sys/devices/system/cpu"
_CPU_LINE = re.compile(r"cpu(\d+)/(?:\w+/)?(\w+)=(.*)")


@dataclass(frozen=True)
class Sensor:
    """A temperature sensor: its name, what it sits on (`unknown` for a type that Android added later), its status."""

    name: str
    kind: str
    temp_c: float
    status: int


@dataclass(frozen=True)
class Thermal:
    """`dumpsys thermalservice`: status 0 (not throttled) to 6, see STATUS_NAMES.

    overridden: somebody fixed the status by `cmd thermalservice override-status`, so it says nothing about heat.
    live: the sensors were read for this call, not taken from Android's memory.
    """

    status: int
    overridden: bool
    live: bool
    sensors: tuple[Sensor, ...]

    def hottest_c(self, kind: str) -> float | None:
        """The highest temperature of a kind of sensor, None where there is none."""
        return max((sensor.temp_c for sensor in self.sensors if sensor.kind == kind), default=None)


@dataclass(frozen=True)
class Battery:
    """`dumpsys battery`. powered_by: ac, usb, wireless, dock. A phone on USB is fed by it: label power readings so.

    updates_stopped: the values are fixed by `dumpsys battery set`.
    """

    level_percent: int
    temp_c: float
    voltage_mv: int | None
    powered_by: tuple[str, ...]
    updates_stopped: bool


@dataclass(frozen=True)
class Core:
    """A CPU core. Clocks in kHz; limit_khz is the highest that the governor may choose, max_khz that of the silicon.

    capacity: the scheduler's figure for its speed, 1024 for the fastest core.
    """

    index: int
    online: bool
    capacity: int | None
    governor: str | None
    clock_khz: int | None
    limit_khz: int | None
    max_khz: int | None


@dataclass(frozen=True)
class Facts:
    """All of them, as a run records them; selinux is `Enforcing`, `Permissive` or `Disabled`."""

    thermal: Thermal | None
    battery: Battery | None
    cores: tuple[Core, ...]
    selinux: str | None


def read_facts(transport: Transport, timeout: Timeout) -> Facts:
    """Everything this module knows; `timeout` holds for each of four calls."""
    return Facts(
        thermal=read_thermal(transport, timeout),
        battery=read_battery(transport, timeout),
        cores=read_cores(transport, timeout),
        selinux=read_selinux(transport, timeout),
    )


def read_thermal(transport: Transport, timeout: Timeout) -> Thermal | None:
    """Status and temperatures; None before Android 10."""
    return parse_thermal(transport.shell(Command(("dumpsys", "thermalservice")), timeout).stdout)


def read_battery(transport: Transport, timeout: Timeout) -> Battery | None:
    """The battery; None where there is none."""
    return parse_battery(transport.shell(Command(("dumpsys", "battery")), timeout).stdout)


def read_cores(transport: Transport, timeout: Timeout) -> tuple[Core, ...]:
    """The CPU's cores in order; empty where the kernel shows none."""
    return parse_cores(transport.shell(script(_CPU_SCRIPT, _CPU_FOLDER), timeout).stdout)


def read_selinux(transport: Transport, timeout: Timeout) -> str | None:
    """SELinux' mode. Denials of the NPU's device read `avc: denied ... vendor_xdsp_device` in the log."""
    words = transport.shell(Command(("getenforce",)), timeout).stdout.split()
    return words[0] if words and words[0] in ("Enforcing", "Permissive", "Disabled") else None


def parse_thermal(text: str) -> Thermal | None:
    """Read `dumpsys thermalservice`; live sensors are preferred to cached ones, which keep old peaks."""
    status = _STATUS.search(text)
    if status is None:
        return None
    live = _sensors(text, _LIVE)
    return Thermal(
        status=int(status.group(1)),
        overridden="IsStatusOverride: true" in text,
        live=bool(live),
        sensors=live or _sensors(text, _CACHED),
    )


def parse_battery(text: str) -> Battery | None:
    """Read `dumpsys battery`; its temperature is in tenths of a degree, its voltage in mV."""
    level, tenths = _number(text, "level"), _number(text, "temperature")
    if level is None or tenths is None:
        return None
    scale = _number(text, "scale") or 100
    return Battery(
        level_percent=round(100 * level / scale),
        temp_c=tenths / 10,
        voltage_mv=_number(text, "voltage"),
        powered_by=tuple(source.lower() for source in _POWERED.findall(text)),
        updates_stopped="UPDATES STOPPED" in text,
    )


def parse_cores(text: str) -> tuple[Core, ...]:
    """Read the PATH=VALUE lines of /sys/devices/system/cpu."""
    values: dict[int, dict[str, str]] = {}
    online: frozenset[int] = frozenset()
    for line in text.splitlines():
        if line.startswith("online="):
            online = _parse_ranges(line.partition("=")[2])
        elif found := _CPU_LINE.fullmatch(line.strip()):
            values.setdefault(int(found.group(1)), {})[found.group(2)] = found.group(3).strip()
    return tuple(_core(index, values.get(index, {}), online) for index in sorted(online | values.keys()))


def _core(index: int, values: Mapping[str, str], online: frozenset[int]) -> Core:
    return Core(
        index=index,
        online=index in online,
        capacity=_integer(values.get("cpu_capacity")),
        governor=values.get("scaling_governor") or None,
        clock_khz=_integer(values.get("scaling_cur_freq")),
        limit_khz=_integer(values.get("scaling_max_freq")),
        max_khz=_integer(values.get("cpuinfo_max_freq")),
    )


def _sensors(text: str, heading: str) -> tuple[Sensor, ...]:
    """The sensors below a heading, up to the next line that is none."""
    sensors = []
    for line in text.partition(heading)[2].splitlines()[1:]:
        found = _SENSOR.search(line)
        if found is None:
            break
        sensor = _parse_sensor(dict(part.strip().partition("=")[::2] for part in found.group("fields").split(",")))
        if sensor is not None:
            sensors.append(sensor)
    return tuple(sensors)


def _parse_sensor(fields: Mapping[str, str]) -> Sensor | None:
    try:
        kind, temp_c, status = int(fields["mType"]), float(fields["mValue"]), int(fields["mStatus"])
    except (KeyError, ValueError):
        return None
    if not math.isfinite(temp_c) or kind in _NO_TEMPERATURE:
        return None
    return Sensor(fields.get("mName", ""), _SENSOR_KINDS.get(kind, "unknown"), temp_c, status)


def _number(text: str, name: str) -> int | None:
    found = re.search(rf"^\s*{name}: (-?\d+)\s*$", text, re.MULTILINE)
    return None if found is None else int(found.group(1))


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _parse_ranges(text: str) -> frozenset[int]:
    """The kernel's lists of CPUs: `0-3,5`."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if found := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            first = int(found.group(1))
            numbers.update(range(first, int(found.group(2) or first) + 1))
    return frozenset(numbers)
