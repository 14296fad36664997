"""Which phone is examined, and what keeps the connected ones from being used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_runner.devices import nothing_connected
from device_runner.doctor.check import Finding, not_checked, ok, problem
from device_runner.errors import DeviceChoiceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_runner.states import ListedDevice


def look_at_states(devices: Sequence[ListedDevice], serial: str | None) -> Finding:
    """Every connected device, or the one asked for, is in a state in which commands run."""
    concerned = [device for device in devices if serial is None or device.serial == serial]
    if not devices:
        return not_checked("none is connected", nothing_connected())
    listing = ", ".join(f"{device.serial} ({device.said})" for device in devices)
    messages = [device.message for device in concerned if device.message is not None]
    return problem(listing, "; ".join(messages)) if messages else ok(listing)


def choose(devices: Sequence[ListedDevice], serial: str | None) -> tuple[Finding, str | None]:
    """The serial of the phone to examine: the one asked for, or the only usable one.

    Raises:
        DeviceChoiceError: the one asked for is not connected.
    """
    usable = [device.serial for device in devices if device.usable]
    if serial is not None:
        if serial not in {device.serial for device in devices}:
            listing = ", ".join(repr(device.serial) for device in devices) or "none"
            raise DeviceChoiceError(f"no device has the serial {serial!r}; connected: {listing}")
        if serial not in usable:
            return not_checked(f"{serial} cannot be used in its state"), None
        return ok(serial), serial
    if len(usable) == 1:
        return ok(f"{usable[0]}, the only usable one"), usable[0]
    if not usable:
        return not_checked("no usable device is connected"), None
    return not_checked(f"{len(usable)} are usable: {', '.join(usable)}", "name one: --device SERIAL"), None
