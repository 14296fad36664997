"""Which phones are connected, what they are, and choosing one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.errors import DeviceChoiceError, DeviceError, DeviceStateError
from device_runner.facts import Thermal, read_thermal
from device_runner.states import ListedDevice, parse_devices
from device_runner.transport import Command, Timeout, Transport, script

if TYPE_CHECKING:
    from device_runner.adb import AdbClient, AdbTransport

# The first call of a day starts adb's server.
LIST_TIMEOUT = Timeout(30.0)
CALL_TIMEOUT = Timeout(20.0)

_PROPERTY = re.compile(r"^\[(.+?)\]: \[(.*?)\]$", re.MULTILINE | re.DOTALL)
_NOTHING = (
    "adb lists no device: connect the phone by a cable that carries data and switch on USB debugging in its developer "
    "options, or `adb connect HOST:PORT`"
)


@dataclass(frozen=True)
class Identity:
    """What a device says of itself; None where it does not say.

    soc_model: ro.soc.model (SM8850), since Android 12. soc_id: the kernel's number for the chip. machine: the kernel's
    name for the processor (aarch64), which says what programs start there.
    """

    model: str | None
    soc_model: str | None
    soc_id: str | None
    android_version: str | None
    abi: str | None
    fingerprint: str | None
    machine: str | None = None


@dataclass(frozen=True)
class DeviceSummary:
    """A connected device. `problem`: why nothing more is known of it, and what to do."""

    serial: str
    state: str
    problem: str | None
    identity: Identity | None
    thermal: Thermal | None


def list_devices(client: AdbClient, timeout: Timeout = LIST_TIMEOUT) -> tuple[ListedDevice, ...]:
    """The devices that adb knows, in every state."""
    return parse_devices(client.devices_text(timeout))


def summarise_devices(client: AdbClient) -> tuple[DeviceSummary, ...]:
    """All connected devices with what the usable ones tell; one that fails meanwhile is a problem of its own."""
    return tuple(_summary(client, device) for device in list_devices(client))


def choose_device(client: AdbClient, serial: str | None = None) -> AdbTransport:
    """The way to the device with this serial, or to the only one there is.

    Raises:
        DeviceChoiceError: none is connected, or several without a serial, or none with it.
        DeviceStateError: the chosen one is not usable.
    """
    devices = list_devices(client)
    chosen = [device for device in devices if serial is None or device.serial == serial]
    if len(chosen) == 1:
        if chosen[0].message is not None:
            raise DeviceStateError(chosen[0].message)
        return client.transport(chosen[0].serial)
    if not devices:
        raise DeviceChoiceError(_NOTHING)
    listing = ", ".join(f"{device.serial!r} ({device.said})" for device in devices)
    if not chosen:
        raise DeviceChoiceError(f"no device has the serial {serial!r}; connected: {listing}")
    raise DeviceChoiceError(f"{len(devices)} devices are connected; name one by its serial: {listing}")


def identify(transport: Transport, timeout: Timeout = CALL_TIMEOUT) -> Identity:
    """Model, chip and Android of a device."""
    properties = parse_properties(transport.shell(Command(("getprop",)), timeout).checked())
    kernel = transport.shell(script("uname -m; cat /sys/devices/soc0/soc_id 2>/dev/null"), timeout).stdout.splitlines()
    machine, soc_id = (line.strip() or None for line in (*kernel, "", "")[:2])
    return Identity(
        model=properties.get("ro.product.model"),
        soc_model=properties.get("ro.soc.model"),
        soc_id=soc_id,
        android_version=properties.get("ro.build.version.release"),
        abi=properties.get("ro.product.cpu.abi"),
        fingerprint=properties.get("ro.build.fingerprint"),
        machine=machine,
    )


def parse_properties(text: str) -> dict[str, str]:
    """The properties in the output of `getprop`, `[name]: [value]`, without empty ones; a value may span lines."""
    return {name: value for name, value in _PROPERTY.findall(text) if value}


def nothing_connected() -> str:
    """What to tell a user whose list of devices is empty."""
    return _NOTHING


def _summary(client: AdbClient, device: ListedDevice) -> DeviceSummary:
    if not device.usable:
        return DeviceSummary(device.serial, device.state.value, device.message, None, None)
    transport = client.transport(device.serial)
    try:
        identity, thermal = identify(transport), read_thermal(transport, CALL_TIMEOUT)
    except DeviceError as error:
        return DeviceSummary(device.serial, device.state.value, str(error), None, None)
    return DeviceSummary(device.serial, device.state.value, None, identity, thermal)
