"""`adb devices` read line by line, in the forms that real and old clients print."""

from __future__ import annotations

import pytest

from device_runner.errors import AdbError
from device_runner.states import DeviceState, ListedDevice, parse_devices, refused_state, state_message

HEADER = "List of devices attached\n"
WIRELESS = "adb-R3CT1-x (2)._adb-tls-connect._tcp"
NO_PERMISSIONS = (
    "no permissions (user in plugdev group; are your udev rules wrong?); see "
    "[http://developer.android.com/tools/device.html]"
)
LONG = " product:e3q model:SM_S948 device:e3q transport_id:1"


@pytest.mark.parametrize(
    ("line", "serial", "state"),
    [
        ("R3CT1\tdevice", "R3CT1", DeviceState.DEVICE),
        (f"{'R3CT1':<22} device{LONG}", "R3CT1", DeviceState.DEVICE),
        ("192.168.1.7:5555\tdevice", "192.168.1.7:5555", DeviceState.DEVICE),
        # Longer than the column, so one blank parts it from its state (flutter#189972).
        (f"{WIRELESS} device{LONG}", WIRELESS, DeviceState.DEVICE),
        (f"{WIRELESS}\toffline", WIRELESS, DeviceState.OFFLINE),
        ("my device 2\tunauthorized", "my device 2", DeviceState.UNAUTHORIZED),
        ("R3CT1\tunauthorized", "R3CT1", DeviceState.UNAUTHORIZED),
        (f"{'R3CT1':<22} unauthorized transport_id:7", "R3CT1", DeviceState.UNAUTHORIZED),
        ("R3CT1\tauthorizing", "R3CT1", DeviceState.AUTHORIZING),
        ("R3CT1\tconnecting", "R3CT1", DeviceState.CONNECTING),
        ("R3CT1\trecovery", "R3CT1", DeviceState.RECOVERY),
        ("R3CT1\tsideload", "R3CT1", DeviceState.SIDELOAD),
        (f"R3CT1\t{NO_PERMISSIONS}", "R3CT1", DeviceState.NO_PERMISSIONS),
        (f"{'????????????':<22} {NO_PERMISSIONS} usb:1-2 transport_id:3", "????????????", DeviceState.NO_PERMISSIONS),
        ("R3CT1\tdevice\r", "R3CT1", DeviceState.DEVICE),
        ("R3CT1\tdreaming", "R3CT1", DeviceState.UNKNOWN),
    ],
)
def test_a_line_is_a_serial_and_a_state(line: str, serial: str, state: DeviceState) -> None:
    (device,) = parse_devices(f"{HEADER}{line}\n\n")
    assert (device.serial, device.state) == (serial, state)


def test_what_the_server_says_first_is_no_device() -> None:
    banner = "* daemon not running; starting now at tcp:5037\n* daemon started successfully\n"
    assert parse_devices(f"{banner}{HEADER}R3CT1\tdevice\n") == (ListedDevice("R3CT1", DeviceState.DEVICE, "device"),)


def test_an_empty_list_holds_nothing() -> None:
    assert parse_devices(f"{HEADER}\n") == ()


def test_output_without_a_list_is_an_error() -> None:
    with pytest.raises(AdbError, match="cannot connect to daemon"):
        parse_devices("error: cannot connect to daemon\n")


def test_each_unusable_state_has_a_message_of_its_own() -> None:
    unusable = [state for state in DeviceState if state is not DeviceState.DEVICE]
    messages = [state_message("R3CT1", state) for state in unusable]
    advice = [message.partition("`: ")[2] for message in messages]
    assert len(set(advice)) == len(unusable)
    assert all(state.value in message for state, message in zip(unusable, messages, strict=True))


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (DeviceState.UNAUTHORIZED, "accept the dialog"),
        (DeviceState.OFFLINE, "replug"),
        (DeviceState.NO_PERMISSIONS, "udev"),
        (DeviceState.AUTHORIZING, "wait"),
    ],
)
def test_the_advice_fits_the_state(state: DeviceState, advice: str) -> None:
    assert advice in state_message("R3CT1", state)


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("adb: device offline\n", DeviceState.OFFLINE),
        ("error: device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set\n", DeviceState.UNAUTHORIZED),
        ("adb: device still authorizing\n", DeviceState.AUTHORIZING),
        ("adb: device 'R3CT1' not found\n", None),
        ("token 1\n", None),
    ],
)
def test_a_refusal_names_its_state(output: str, state: DeviceState | None) -> None:
    assert refused_state(output) is state
