"""What goes wrong between client and phone: by the daemon where the real adb can be brought to it, else scripted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from device_runner.adb import AdbClient
from device_runner.errors import (
    AdbError,
    AdbMissingError,
    CallTimeoutError,
    CommandError,
    DeviceError,
    DeviceStateError,
    LinkLostError,
    NoSpaceError,
    PushError,
)
from device_runner.transport import Command, Timeout, script
from tests.device_runner.conftest import CALL, wait_until
from tests.device_runner.phone import Authorization

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbTransport
    from tests.device_runner.fake_adb import FakeAdb
    from tests.device_runner.phone import Phone

RUNNER = Command(("hyco_runner", "--prompt", "p.txt"))
TOKENS = script("for i in 1 2 3 4 5 6 7 8 9; do echo token $i; sleep 0.02; done")


@pytest.mark.adb
def test_a_link_cut_mid_run_is_no_result(phone: Phone, device: AdbTransport) -> None:
    phone.faults.drop_shell_after = 20
    with pytest.raises(LinkLostError, match="without its exit code"):
        device.shell(TOKENS, CALL)


@pytest.mark.adb
def test_a_stream_over_a_cut_link_ends_in_an_error(phone: Phone, device: AdbTransport) -> None:
    phone.faults.drop_shell_after = 20
    lines = []
    with pytest.raises(LinkLostError):
        lines.extend(device.stream(TOKENS, CALL))
    assert "token 9" not in lines


@pytest.mark.adb
def test_a_phone_that_says_nothing_times_out(phone: Phone, device: AdbTransport) -> None:
    phone.faults.hang = True
    started = time.monotonic()
    with pytest.raises(CallTimeoutError, match=r"did not end within 0\.5 s"):
        device.shell(RUNNER, Timeout(0.5))
    with pytest.raises(CallTimeoutError, match=r"printed nothing for 0\.5 s"):
        next(device.stream(RUNNER, Timeout(30.0, silence_s=0.5)))
    assert time.monotonic() - started < 5


@pytest.mark.adb
@pytest.mark.parametrize("legacy", [False, True])
def test_a_lost_exit_code_is_found_again(phone: Phone, connect: Callable[[Phone], AdbTransport], legacy: bool) -> None:
    """`adb shell` itself ends with 0 here, as with devices before Android 7."""
    phone.faults.legacy, phone.faults.lose_exit_code = legacy, not legacy
    device = connect(phone)
    result = device.shell(RUNNER, CALL)
    assert result.exit_code == 127
    with pytest.raises(CommandError, match=r"hyco_runner.*exit code 127.*not found"):
        result.checked()
    with pytest.raises(CommandError, match="exit code 127"):
        list(device.stream(RUNNER, CALL))


@pytest.mark.adb
def test_line_ends_are_ours(phone: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    phone.faults.crlf = phone.faults.legacy = True
    device = connect(phone)
    assert device.shell(script("echo avg_ms: 12.5; echo; echo end"), CALL).checked() == "avg_ms: 12.5\n\nend\n"
    assert list(device.stream(script("echo avg_ms: 12.5; echo; echo end"), CALL)) == ["avg_ms: 12.5", "", "end"]


@pytest.mark.adb
def test_a_phone_that_went_offline_says_so(phone: Phone, device: AdbTransport, adb: AdbClient) -> None:
    phone.faults.mute, phone.faults.drop_shell_after = True, 0
    with pytest.raises(LinkLostError):
        device.shell(TOKENS, CALL)
    assert wait_until(lambda: "offline" in adb.devices_text(CALL))
    with pytest.raises(DeviceStateError, match=r"`offline`: .*replug"):
        device.shell(TOKENS, CALL)


@pytest.mark.adb
def test_a_phone_that_is_gone_says_so(adb: AdbClient, tmp_path: Path) -> None:
    device = adb.transport("R3CT-gone")
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    with pytest.raises(LinkLostError, match="not connected any more"):
        device.shell(TOKENS, CALL)
    with pytest.raises(LinkLostError, match="not connected any more"):
        list(device.stream(TOKENS, CALL))
    with pytest.raises(LinkLostError, match="not connected any more"):
        device.push_file(source, "/data/local/tmp/x", CALL)
    with pytest.raises(LinkLostError, match="not connected any more"):
        device.pull_file("/data/local/tmp/x", tmp_path / "back", CALL)
    with pytest.raises(LinkLostError, match="not connected any more"), device.forward(1, CALL):
        pass


@pytest.mark.adb
def test_an_unauthorised_phone_asks_for_its_dialog(phone: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    phone.authorization = Authorization.REFUSES
    device = connect(phone)
    with pytest.raises(DeviceStateError, match="accept the dialog"):
        device.shell(TOKENS, CALL)


@pytest.mark.parametrize(
    ("shell", "kind", "message"),
    [
        ("echo '/system/bin/sh: hyco_runner: not found'; true", LinkLostError, "hyco_runner: not found"),
        ("echo token 1; true", LinkLostError, "token 1"),
        ("echo token 1; echo \"adb: device 'R3CT1' not found\" >&2; false", LinkLostError, "not connected any more"),
        ("echo 'adb: device offline' >&2; false", DeviceStateError, "replug"),
        ("echo 'adb: device unauthorized.' >&2; false", DeviceStateError, "accept the dialog"),
        ("echo token 1; sleep 60", CallTimeoutError, "."),
    ],
    ids=["rc0", "drop", "gone", "offline", "unauth", "hang"],
)
def test_only_the_marker_makes_a_result(
    fake_adb: Callable[..., FakeAdb], shell: str, kind: type[DeviceError], message: str
) -> None:
    """adb's own exit code and silence prove nothing; both ways to run a command notice."""
    device = fake_adb(shell=shell).client.transport("R3CT1")
    started = time.monotonic()
    with pytest.raises(kind, match=message):
        device.shell(RUNNER, Timeout(0.5))
    with pytest.raises(kind, match=message):
        list(device.stream(RUNNER, Timeout(0.5)))
    assert time.monotonic() - started < 10


def test_windows_line_ends_of_a_client(fake_adb: Callable[..., FakeAdb]) -> None:
    device = fake_adb(shell='shift; out=$(bash -c "$*"); printf "%s" "$out" | sed "s/$/\\r/"').client.transport("R3CT1")
    assert device.shell(script("echo avg_ms: 12.5"), CALL).checked() == "avg_ms: 12.5\n"
    assert list(device.stream(script("echo avg_ms: 12.5"), CALL)) == ["avg_ms: 12.5"]


@pytest.mark.parametrize("exit_code", [0, 1])
@pytest.mark.parametrize(
    ("reason", "kind"), [("No space left on device", NoSpaceError), ("couldn't create file: Is a directory", PushError)]
)
def test_a_failed_push_is_no_success(
    fake_adb: Callable[..., FakeAdb], tmp_path: Path, exit_code: int, reason: str, kind: type[PushError]
) -> None:
    push = (
        f"""echo "adb: error: failed to copy '$2' to '$3': remote {reason}"; """
        f"""echo "$2: 1 file pushed, 0 skipped. 1.9 MB/s"; exit {exit_code}"""
    )
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    with pytest.raises(kind, match=reason):
        fake_adb(push=push).client.transport("R3CT1").push_file(source, "/data/local/tmp/x", CALL)


def test_the_client_s_own_failures(fake_adb: Callable[..., FakeAdb], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_adb(devices="echo 'error: cannot bind to tcp:5037' >&2; false").client
    with pytest.raises(AdbError, match="cannot bind"):
        broken.devices_text(CALL)
    with pytest.raises(AdbMissingError, match="cannot be started"):
        AdbClient("/nonexistent/adb").devices_text(CALL)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AdbMissingError, match="apt install adb"):
        AdbClient.find()
