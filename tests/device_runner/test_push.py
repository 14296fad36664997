"""A folder on its way to a device, over the real adb, over a scripted one, and on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from device_runner.errors import DeviceError, LinkLostError, NoSpaceError, PushError
from device_runner.local import LocalTransport
from device_runner.push import PushOptions, push_folder, pushed_folder
from device_runner.transport import Command, Timeout
from quant.errors import UsageError
from tests.device_runner.conftest import CALL, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbClient, AdbTransport
    from device_runner.transport import Transport
    from tests.device_runner.fake_adb import FakeAdb
    from tests.device_runner.phone import Phone

OPTIONS = PushOptions("run 1's", call=Timeout(20.0))
NAMES = ("a.bin", "lib/lib x.so", 'lib/quote\'d "q".txt', "ü $HOME.bin")
FULL_DISK = """#!/bin/sh
echo 'Filesystem     1K-blocks     Used Available Use% Mounted on'
echo '/dev/block/dm-53 232212532 45123456 100  20% /storage/emulated/0/Android/obb'
"""


@dataclass(frozen=True)
class Place:
    """A way to a device, and where the device's work_dir lies on this machine."""

    transport: Transport
    work_dir: Path

    @property
    def pushed(self) -> Path:
        return self.work_dir / "hyco-npu" / OPTIONS.name


@pytest.fixture(params=["local", pytest.param("adb", marks=pytest.mark.adb)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "adb":
        return Place(request.getfixturevalue("device"), request.getfixturevalue("phone").work_dir)
    (tmp_path / "root").mkdir()
    return Place(LocalTransport(tmp_path / "root"), tmp_path / "root")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Files with odd names, an empty one, and one of more than an adb packet."""
    folder = tmp_path / "bundle"
    (folder / "lib").mkdir(parents=True)
    for size, name in zip((0, 1, 70_000, 300_000), NAMES, strict=True):
        (folder / name).write_bytes(os.urandom(size))
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_arrives(place: Place, bundle: Path) -> None:
    result = push_folder(place.transport, bundle, OPTIONS)
    assert _files(place.pushed) == _files(bundle)
    assert result.remote == f"{place.transport.work_dir}/hyco-npu/{OPTIONS.name}"
    assert (result.pushed, result.skipped, result.size_bytes) == (tuple(sorted(NAMES)), (), 370_001)


def test_what_is_there_is_not_sent_again(place: Place, bundle: Path) -> None:
    push_folder(place.transport, bundle, OPTIONS)
    again = push_folder(place.transport, bundle, OPTIONS)
    assert (again.pushed, again.skipped, again.size_bytes) == ((), tuple(sorted(NAMES)), 0)


def test_only_what_changed_is_sent(place: Place, bundle: Path) -> None:
    push_folder(place.transport, bundle, OPTIONS)
    content = bytearray((bundle / NAMES[2]).read_bytes())
    content[1234] ^= 1
    (bundle / NAMES[2]).write_bytes(content)
    (place.pushed / NAMES[3]).unlink()
    assert push_folder(place.transport, bundle, OPTIONS).pushed == (NAMES[2], NAMES[3])
    assert _files(place.pushed) == _files(bundle)


def test_what_else_lies_there_stays(place: Place, bundle: Path) -> None:
    place.pushed.mkdir(parents=True)
    (place.pushed / "other").write_bytes(b"1")
    push_folder(place.transport, bundle, OPTIONS)
    assert (place.pushed / "other").read_bytes() == b"1"


def test_a_rest_of_a_broken_push_goes(place: Place, bundle: Path) -> None:
    place.pushed.mkdir(parents=True)
    (place.pushed / "a.bin.hyco-part").write_bytes(b"half")
    push_folder(place.transport, bundle, OPTIONS)
    assert _files(place.pushed) == _files(bundle)


def test_a_folder_in_the_way_is_an_error(place: Place, bundle: Path) -> None:
    (place.pushed / "a.bin").mkdir(parents=True)
    with pytest.raises(DeviceError, match=r"a\.bin on the device is folder"):
        push_folder(place.transport, bundle, OPTIONS)


def test_the_folder_goes_at_the_end(place: Place, bundle: Path) -> None:
    with pushed_folder(place.transport, bundle, OPTIONS) as result:
        assert place.transport.shell(Command(("ls",), result.remote), CALL).checked() != ""
        assert _files(place.pushed) == _files(bundle)
    assert not place.pushed.exists()


def test_the_folder_goes_after_a_failure_too(place: Place, bundle: Path) -> None:
    with pytest.raises(ZeroDivisionError), pushed_folder(place.transport, bundle, OPTIONS):
        raise ZeroDivisionError
    assert not place.pushed.exists()


@pytest.mark.parametrize(("stop", "stays"), [(KeyboardInterrupt, False), (SystemExit, False), (PushError, True)])
@pytest.mark.parametrize("keep", [False, True])
def test_a_push_that_its_user_interrupts_is_removed(
    stop: type[BaseException], stays: bool, keep: bool, bundle: Path, tmp_path: Path
) -> None:
    class Stopping(LocalTransport):
        def push_file(self, local: Path, remote: str, timeout: Timeout) -> None:
            if local.name == "lib x.so":
                raise stop
            super().push_file(local, remote, timeout)

    (tmp_path / "root").mkdir()
    with (
        pytest.raises(stop),
        pushed_folder(Stopping(tmp_path / "root"), bundle, PushOptions("run", keep, call=Timeout(20.0))),
    ):
        pass
    assert (tmp_path / "root/hyco-npu/run").exists() == (stays or keep)


@pytest.mark.parametrize("fails", [False, True])
def test_the_folder_stays_where_that_is_asked_for(place: Place, bundle: Path, fails: bool) -> None:
    options = PushOptions(OPTIONS.name, keep=True)
    if fails:
        with pytest.raises(ZeroDivisionError), pushed_folder(place.transport, bundle, options):
            raise ZeroDivisionError
    else:
        with pushed_folder(place.transport, bundle, options):
            pass
    assert _files(place.pushed) == _files(bundle)


def test_an_empty_folder_is_wrong_use(place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    with pytest.raises(UsageError, match="no file to push"):
        push_folder(place.transport, tmp_path / "empty", OPTIONS)


def test_a_file_with_the_name_of_a_partial_one_is_wrong_use(place: Place, bundle: Path) -> None:
    (bundle / "a.bin.hyco-part").write_bytes(b"1")
    with pytest.raises(UsageError, match="rename it"):
        push_folder(place.transport, bundle, OPTIONS)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/"])
def test_a_name_that_leads_elsewhere_is_wrong_use(name: str) -> None:
    with pytest.raises(UsageError, match="no name of a folder"):
        PushOptions(name)


@pytest.mark.adb
def test_space_is_looked_for_first(phone: Phone, device: AdbTransport, bundle: Path) -> None:
    phone.set_command("df", FULL_DISK)
    with pytest.raises(NoSpaceError, match=r"102,400 bytes free .* nothing was sent"):
        push_folder(device, bundle, OPTIONS)
    assert not any(service.startswith("sync") for service in phone.services)
    for name in NAMES[2:]:
        (bundle / name).unlink()
    assert push_folder(device, bundle, OPTIONS).size_bytes == 1


@pytest.mark.adb
def test_a_disk_that_fills_up_meanwhile(phone: Phone, device: AdbTransport, bundle: Path) -> None:
    """The reason is told, the partial file goes, finished ones stay and are skipped the next time."""
    phone.faults.no_space_after = 100_000
    with pytest.raises(NoSpaceError, match="No space left on device"):
        push_folder(device, bundle, OPTIONS)
    pushed = phone.work_dir / "hyco-npu" / OPTIONS.name
    assert sorted(_files(pushed)) == sorted(NAMES[:3])
    phone.faults.no_space_after = None
    assert push_folder(device, bundle, OPTIONS).pushed == (NAMES[3],)
    assert _files(pushed) == _files(bundle)


@pytest.mark.adb
def test_a_cut_link_is_an_error_and_the_push_is_resumed(
    phone: Phone, device: AdbTransport, bundle: Path, adb: AdbClient
) -> None:
    phone.faults.drop_push_after = 100_000
    with pytest.raises(DeviceError):
        push_folder(device, bundle, OPTIONS)
    pushed = phone.work_dir / "hyco-npu" / OPTIONS.name
    assert NAMES[3] not in _files(pushed)
    phone.faults.drop_push_after = None
    assert wait_until(lambda: f"{device.serial}\tdevice" in adb.devices_text(CALL))
    assert NAMES[0] in push_folder(device, bundle, OPTIONS).skipped
    assert _files(pushed) == _files(bundle)


@pytest.mark.adb
def test_a_changed_byte_is_found(phone: Phone, device: AdbTransport, bundle: Path) -> None:
    (bundle / NAMES[0]).unlink()
    phone.faults.corrupt_push = True
    with pytest.raises(PushError, match=r"lib x\.so has sha256 [0-9a-f]{64}, not [0-9a-f]{64}"):
        push_folder(device, bundle, OPTIONS)
    assert _files(phone.work_dir / "hyco-npu") == {}


@pytest.mark.adb
def test_a_failure_is_not_hidden_by_the_removal_that_fails_too(
    phone: Phone, device: AdbTransport, bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        phone.faults.drop_shell_after = 0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), pushed_folder(device, bundle, OPTIONS):
        work()
    assert "stays on" in caplog.text


@pytest.mark.adb
def test_a_removal_that_fails_is_an_error(phone: Phone, device: AdbTransport, bundle: Path) -> None:
    with pytest.raises(LinkLostError), pushed_folder(device, bundle, OPTIONS):
        phone.faults.drop_shell_after = 0


# The real client counts a file as pushed after an error; old ones end with 0.
NO_SPACE = (
    """echo "adb: error: failed to copy '$2' to '$3': remote No space left on device"; echo "$2: 1 file pushed"; """
)
LEAVES_HALF = 'to="{device}${{3#/data/local/tmp}}"; head -c 1000 "$2" > "$to"; '


@pytest.mark.parametrize("exit_code", [0, 1])
def test_no_space_whatever_the_exit_code(fake_adb: Callable[..., FakeAdb], bundle: Path, exit_code: int) -> None:
    fake = fake_adb(push=f"{NO_SPACE}exit {exit_code}")
    with pytest.raises(NoSpaceError, match="No space left on device"):
        push_folder(fake.client.transport("R3CT1"), bundle, OPTIONS)
    assert _files(fake.device) == {}
    assert all(call[:2] == ["-s", "R3CT1"] for call in fake.calls)


def test_half_a_file_is_found_though_the_client_reports_success(
    fake_adb: Callable[..., FakeAdb], bundle: Path, tmp_path: Path
) -> None:
    fake = fake_adb(push=LEAVES_HALF.format(device=tmp_path / "fake-adb" / "device") + 'echo "$2: 1 file pushed"')
    with pytest.raises(PushError, match=r"1,000 of (70,000|300,000) bytes"):
        push_folder(fake.client.transport("R3CT1"), bundle, OPTIONS)
    # The two files of less than 1,000 bytes did arrive.
    assert sorted(path.name for path in fake.device.rglob("*") if path.is_file()) == ["a.bin", "lib x.so"]


def test_a_file_that_never_arrived_is_found(fake_adb: Callable[..., FakeAdb], bundle: Path) -> None:
    fake = fake_adb(push='echo "$2: 1 file pushed, 0 skipped."')
    with pytest.raises(PushError, match=r"a\.bin is not there after its push"):
        push_folder(fake.client.transport("R3CT1"), bundle, OPTIONS)


def test_a_hanging_push_times_out(fake_adb: Callable[..., FakeAdb], bundle: Path) -> None:
    fake = fake_adb(push="sleep 60")
    with pytest.raises(DeviceError, match="did not end within"):
        push_folder(fake.client.transport("R3CT1"), bundle, PushOptions("x", call=Timeout(1.0)))
