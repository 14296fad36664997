"""What `adb devices` prints, and what each state of a device asks of its user."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from device_runner.errors import AdbError
from device_runner.transport import excerpt

_HEADER = "List of devices attached"


class DeviceState(Enum):
    """The states adb's server gives a device; the value is adb's word."""

    DEVICE = "device"
    UNAUTHORIZED = "unauthorized"
    AUTHORIZING = "authorizing"
    CONNECTING = "connecting"
    OFFLINE = "offline"
    NO_PERMISSIONS = "no permissions"
    RECOVERY = "recovery"
    SIDELOAD = "sideload"
    RESCUE = "rescue"
    BOOTLOADER = "bootloader"
    DETACHED = "detached"
    HOST = "host"
    UNKNOWN = "unknown"


_ADVICE = {
    DeviceState.UNAUTHORIZED: "unlock the phone and accept the dialog `Allow USB debugging`; if none comes, revoke the "
    "authorisations in its developer options and plug it in again",
    DeviceState.AUTHORIZING: "the keys are being exchanged: wait some seconds, and watch the phone for a dialog",
    DeviceState.CONNECTING: "the connection is being made: wait some seconds and try again",
    DeviceState.OFFLINE: "the phone does not answer: replug the cable (or `adb connect` again), else restart the phone",
    DeviceState.NO_PERMISSIONS: "this user may not open the USB device: install udev rules (Debian: "
    "android-sdk-platform-tools-common), join the group plugdev, log in again and replug",
    DeviceState.RECOVERY: "the phone is in recovery: restart it into Android",
    DeviceState.SIDELOAD: "the phone waits for a sideload: restart it into Android",
    DeviceState.RESCUE: "the phone is in rescue mode: restart it into Android",
    DeviceState.BOOTLOADER: "the phone is in its bootloader: restart it into Android (`fastboot reboot`)",
    DeviceState.DETACHED: "adb gave the device up to another program: `adb attach` takes it back",
    DeviceState.HOST: "this is an adb host, not a phone",
    DeviceState.UNKNOWN: "adb does not know what the device is doing: replug it, or update adb",
}

# A serial may hold blanks (wireless debugging: `adb-X (2)._adb-tls-connect._tcp`) and colons, so a line is taken apart
# from its right end: key:value words, then the state.
_WORDS = "|".join(state.value for state in DeviceState if state is not DeviceState.NO_PERMISSIONS)
_LINE = re.compile(rf"(?P<serial>.+)\s(?P<state>{_WORDS}|no permissions.*?)(?:\s+[a-z_]+:\S*)*\s*")
_REFUSAL = re.compile(r"device(?: '[^']*')? (?:is )?(?:still )?(unauthorized|offline|authorizing|connecting)")


@dataclass(frozen=True)
class ListedDevice:
    """A line of `adb devices`; `said` is adb's text for the state, longer than the word for `no permissions`."""

    serial: str
    state: DeviceState
    said: str

    @property
    def usable(self) -> bool:
        """Whether commands can run on it."""
        return self.state is DeviceState.DEVICE

    @property
    def message(self) -> str | None:
        """Why it is not usable and what to do; None where it is."""
        return None if self.usable else state_message(self.serial, self.state, self.said)


def state_message(serial: str, state: DeviceState, said: str | None = None) -> str:
    """The sentence for a device that is connected but not usable."""
    return f"device {serial} is `{said or state.value}`: {_ADVICE[state]}"


def refused_state(output: str) -> DeviceState | None:
    """The state for which adb refused a call (`adb: device offline`), if that is what its output says."""
    found = _REFUSAL.search(output)
    return None if found is None else DeviceState(found.group(1))


def parse_devices(output: str) -> tuple[ListedDevice, ...]:
    """The devices in the output of `adb devices`, with or without `-l`; what the server says before is skipped.

    Raises:
        AdbError: there is no list in the output.
    """
    _, header, listing = output.partition(_HEADER)
    if not header:
        raise AdbError(f"`adb devices` gave no list: {excerpt(output)}")
    return tuple(_parse_line(line) for line in listing.splitlines() if line.strip())


def _parse_line(line: str) -> ListedDevice:
    found = _LINE.fullmatch(line)
    if found is None:
        serial, _, said = line.rstrip().rpartition("\t")
        return ListedDevice(serial.strip() or said, DeviceState.UNKNOWN, said)
    said = found.group("state").strip()
    state = DeviceState.NO_PERMISSIONS if said.startswith(DeviceState.NO_PERMISSIONS.value) else DeviceState(said)
    return ListedDevice(found.group("serial").strip(), state, said)
