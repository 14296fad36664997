"""Listing phones and choosing one."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from device_runner.devices import choose_device, identify, list_devices, parse_properties, summarise_devices
from device_runner.errors import DeviceChoiceError, DeviceStateError
from device_runner.transport import Command
from tests.device_runner.conftest import CALL, wait_until
from tests.device_runner.phone import Authorization, Phone
from tests.device_runner.samples import thermal_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbClient, AdbTransport
    from tests.device_runner.fake_adb import FakeAdb

WIRELESS = "adb-R3CT1-x (2)._adb-tls-connect._tcp"


@pytest.fixture
def adb_listing(fake_adb: Callable[..., FakeAdb]) -> Callable[..., FakeAdb]:
    """A client that lists these lines."""

    def make(*lines: str) -> FakeAdb:
        text = "".join(f"{line}\\n" for line in lines)
        return fake_adb(devices=f"printf 'List of devices attached\\n{text}\\n'")

    return make


def test_the_only_device_is_chosen(adb_listing: Callable[..., FakeAdb]) -> None:
    assert choose_device(adb_listing("R3CT1\\tdevice").client).serial == "R3CT1"


@pytest.mark.parametrize("lines", [("R3CT1\\tdevice", "R3CT2\\tdevice"), ("R3CT1\\tunauthorized", "R3CT2\\tdevice")])
def test_several_devices_need_a_serial(adb_listing: Callable[..., FakeAdb], lines: tuple[str, ...]) -> None:
    client = adb_listing(*lines).client
    with pytest.raises(DeviceChoiceError, match=r"2 devices .*'R3CT1' \(.*\), 'R3CT2' \(device\)"):
        choose_device(client)
    assert choose_device(client, "R3CT2").serial == "R3CT2"


def test_no_device_at_all(adb_listing: Callable[..., FakeAdb]) -> None:
    with pytest.raises(DeviceChoiceError, match="no device: connect the phone"):
        choose_device(adb_listing().client)
    with pytest.raises(DeviceChoiceError, match="no device: connect the phone"):
        choose_device(adb_listing().client, "R3CT1")


def test_a_serial_that_is_not_connected(adb_listing: Callable[..., FakeAdb]) -> None:
    with pytest.raises(DeviceChoiceError, match=r"no device has the serial 'R3CT9'; connected: 'R3CT1' \(device\)"):
        choose_device(adb_listing("R3CT1\\tdevice").client, "R3CT9")


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("unauthorized", "accept the dialog"),
        ("offline", "replug"),
        ("authorizing", "wait some seconds"),
        ("no permissions (user in plugdev group; are your udev rules wrong?); see [http://x]", "udev rules"),
        ("recovery", "restart it into Android"),
    ],
)
def test_an_unusable_device_says_what_to_do(adb_listing: Callable[..., FakeAdb], state: str, advice: str) -> None:
    client = adb_listing(f"R3CT1\\t{state}").client
    with pytest.raises(DeviceStateError, match=advice):
        choose_device(client)
    with pytest.raises(DeviceStateError, match=advice):
        choose_device(client, "R3CT1")
    (summary,) = summarise_devices(client)
    assert advice in str(summary.problem)


@pytest.mark.parametrize(
    ("line", "serial"),
    [(f"{WIRELESS} device product:e3q", WIRELESS), ("192.168.1.7:5555\\tdevice", "192.168.1.7:5555")],
)
def test_a_serial_with_blanks_and_colons_stays_whole(
    adb_listing: Callable[..., FakeAdb], tmp_path: Path, line: str, serial: str
) -> None:
    fake = adb_listing(line)
    device = choose_device(fake.client)
    device.shell(Command(("true",)), CALL).checked()
    list(device.stream(Command(("true",)), CALL))
    (tmp_path / "source").write_bytes(b"abc")
    device.push_file(tmp_path / "source", "/data/local/tmp/x y", CALL)
    assert [call[:2] for call in fake.calls] == [["devices"], *[["-s", serial]] * 3]
    assert fake.calls[-1] == ["-s", serial, "push", str(tmp_path / "source"), "/data/local/tmp/x y"]


def test_properties_with_line_ends_and_brackets() -> None:
    text = "[a.b]: [1]\n[empty]: []\n[long]: [first\nsecond]\n[list]: [[x]: [y]]\n[ro.soc.model]: [SM8850]\n"
    properties = parse_properties(text)
    assert properties["long"] == "first\nsecond"
    assert (properties["a.b"], properties["ro.soc.model"]) == ("1", "SM8850")
    assert "empty" not in properties


@pytest.mark.adb
def test_a_phone_over_adb(phone: Phone, device: AdbTransport, adb: AdbClient) -> None:
    phone.set_dumpsys("thermalservice", thermal_text(1, 36.5))
    soc_id = phone.path("/sys/devices/soc0/soc_id")
    soc_id.parent.mkdir(parents=True)
    soc_id.write_text("660\n")
    assert [listed.serial for listed in list_devices(adb)] == [device.serial]
    (summary,) = summarise_devices(adb)
    assert (summary.serial, summary.state, summary.problem) == (device.serial, "device", None)
    assert summary.identity == identify(device)
    assert summary.identity is not None
    assert (summary.identity.model, summary.identity.soc_model, summary.identity.soc_id) == ("SM_S948", "SM8850", "660")
    assert (summary.identity.android_version, summary.identity.abi) == ("16", "arm64-v8a")
    # the tests' phone runs its programs here
    assert summary.identity.machine == platform.machine()
    assert summary.thermal is not None
    assert (summary.thermal.status, summary.thermal.hottest_c("skin")) == (1, 36.5)


@pytest.mark.adb
def test_two_phones_over_adb(tmp_path: Path, adb: AdbClient, connect: Callable[[Phone], AdbTransport]) -> None:
    """Each call reaches the phone it names; one that refuses does not hide the other."""
    first, second = Phone(tmp_path / "1"), Phone(tmp_path / "2", authorization=Authorization.REFUSES)
    first.set_properties(ro_product_model="first")
    devices = [connect(first), connect(second)]
    with pytest.raises(DeviceChoiceError, match="2 devices are connected"):
        choose_device(adb)
    assert identify(choose_device(adb, devices[0].serial)).model == "first"
    with pytest.raises(DeviceStateError, match="accept the dialog"):
        choose_device(adb, devices[1].serial)
    summaries = {summary.serial: summary for summary in summarise_devices(adb)}
    assert summaries[devices[0].serial].problem is None
    assert "accept the dialog" in str(summaries[devices[1].serial].problem)


@pytest.mark.adb
def test_a_phone_that_leaves_while_it_is_asked_is_listed_with_its_problem(
    phone: Phone, device: AdbTransport, adb: AdbClient
) -> None:
    phone.faults.drop_shell_after = 0
    (summary,) = summarise_devices(adb)
    assert (summary.serial, summary.identity) == (device.serial, None)
    assert "exit code" in str(summary.problem)
    assert wait_until(lambda: device.serial in adb.devices_text(CALL))
