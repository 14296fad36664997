"""Waiting until a phone is cool: a measurement on a warm one shows the heat, not the code.

The wait is part of the result and recorded with its readings. This module does not know what is measured afterwards.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from device_runner.errors import FactError, ThermalGateError
from device_runner.facts import STATUS_NAMES, Thermal, read_thermal
from device_runner.transport import Timeout, Transport
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_CALL = Timeout(20.0)


@dataclass(frozen=True)
class ThermalGate:
    """When a phone is cool enough, and how long to wait for it.

    max_status: the highest thermal status that passes. max_skin_c: a limit for the hottest skin sensor; None: no limit.
    """

    max_status: int = 0
    max_skin_c: float | None = None
    timeout_s: float = 600.0
    poll_s: float = 10.0
    call: Timeout = _CALL

    def __post_init__(self) -> None:
        if self.max_status < 0 or self.timeout_s < 0 or not self.poll_s > 0:
            raise UsageError(
                f"a gate of status {self.max_status}, {self.timeout_s} s, every {self.poll_s} s: give a status and a "
                "time that are not negative, and a positive interval"
            )
        if self.max_skin_c is not None and not math.isfinite(self.max_skin_c):
            raise UsageError(f"a gate for a skin of {self.max_skin_c} °C: give a temperature")

    def passes(self, thermal: Thermal) -> bool:
        """Whether a reading is cool enough; a skin limit without a skin sensor is not met."""
        if thermal.status > self.max_status:
            return False
        skin_c = thermal.hottest_c("skin")
        return self.max_skin_c is None or (skin_c is not None and skin_c <= self.max_skin_c)


@dataclass(frozen=True)
class ThermalReading:
    """The status and the hottest skin sensor (°C) so many seconds after the wait began."""

    after_s: float
    status: int
    skin_c: float | None


@dataclass(frozen=True)
class CoolDown:
    """A wait that succeeded: its length and everything that was read, the passing reading last."""

    waited_s: float
    readings: tuple[ThermalReading, ...]


class Clock(Protocol):
    """Monotonic seconds, and waiting; `time` is one."""

    @property
    def monotonic(self) -> Callable[[], float]: ...

    @property
    def sleep(self) -> Callable[[float], None]: ...


def wait_until_cool(transport: Transport, gate: ThermalGate, clock: Clock = time) -> CoolDown:
    """Read the thermal status until the gate passes.

    Raises:
        FactError: the device does not tell its status, or the status is fixed by hand.
        ThermalGateError: it was still warm after gate.timeout_s.
    """
    started = clock.monotonic()
    readings: list[ThermalReading] = []
    while True:
        thermal = _required(transport, gate)
        after_s = clock.monotonic() - started
        readings.append(ThermalReading(after_s, thermal.status, thermal.hottest_c("skin")))
        if gate.passes(thermal):
            return CoolDown(after_s, tuple(readings))
        if after_s >= gate.timeout_s:
            raise ThermalGateError(_still_warm(transport, gate, readings))
        clock.sleep(min(gate.poll_s, gate.timeout_s - after_s))


def _required(transport: Transport, gate: ThermalGate) -> Thermal:
    thermal = read_thermal(transport, gate.call)
    if thermal is None:
        raise FactError(
            f"`dumpsys thermalservice` on {transport.name} tells no thermal status (Android 10 and later do)"
        )
    if thermal.overridden:
        raise FactError(
            f"the thermal status of {transport.name} is fixed at {thermal.status}: "
            "`adb shell cmd thermalservice reset` gives the real one back"
        )
    return thermal


def _still_warm(transport: Transport, gate: ThermalGate, readings: list[ThermalReading]) -> str:
    last = readings[-1]
    name = STATUS_NAMES[last.status] if last.status < len(STATUS_NAMES) else "unknown"
    skin = "no skin sensor" if last.skin_c is None else f"skin {last.skin_c:.1f} °C"
    limit = "" if gate.max_skin_c is None else f" and a skin of {gate.max_skin_c:.1f} °C"
    return (
        f"{transport.name} has thermal status {last.status} ({name}), {skin}, after {last.after_s:.0f} s; the gate "
        f"asks for status {gate.max_status}{limit}: let it cool, out of its case and away from the "
        "charger, or wait longer"
    )
