"""What every transport promises, on the real adb with a device daemon and on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from device_runner.errors import CallTimeoutError, CommandError, DeviceError
from device_runner.local import LocalTransport
from device_runner.remote_files import (
    RemoteFile,
    describe_file,
    describe_remote,
    free_bytes,
    make_folders,
    pull_verified,
    remove,
)
from device_runner.transport import Command, Timeout, script
from quant.errors import UsageError
from tests.device_runner.conftest import CALL, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from device_runner.transport import Transport

ODD_NAMES = ["plain.bin", "with blank.bin", 'quote\'d "twice".bin', "$HOME `id` \\n;&.bin", "ünïcode.bin", "-rf.bin"]
# Hashes as sha256sum(1) of coreutils gives them.
SHA256_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
SHA256_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture(params=["local", pytest.param("adb", marks=pytest.mark.adb)])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Transport:
    if request.param == "adb":
        found: Transport = request.getfixturevalue("device")
        return found
    (tmp_path / "root").mkdir()
    return LocalTransport(tmp_path / "root")


@pytest.fixture
def seconds() -> str:
    """So long that it never ends, and no other process of this machine sleeps for it."""
    return str(secrets.randbelow(10**9) + 10**9)


@pytest.mark.parametrize("exit_code", [0, 1, 7, 126, 255])
def test_exit_code_and_both_outputs_arrive(transport: Transport, exit_code: int) -> None:
    result = transport.shell(script(f"echo out; echo err >&2; exit {exit_code}"), CALL)
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "out\n", "err\n")


@pytest.mark.parametrize("text", ["", "no line end", "one\n", "two\n\n", "\n", " blanks \n\n\n"])
def test_output_is_what_was_printed(transport: Transport, text: str) -> None:
    assert transport.shell(Command(("printf", "%s", text)), CALL).checked() == text


def test_large_output_arrives_whole(transport: Transport) -> None:
    assert transport.shell(Command(("seq", "100000")), CALL).checked() == "".join(f"{i}\n" for i in range(1, 100001))


@pytest.mark.parametrize("name", [*ODD_NAMES, "", "a\nb", "*", "~", "#x", "a  b"])
def test_an_argument_stays_one_argument(transport: Transport, name: str) -> None:
    result = transport.shell(script('printf "%s|" "$#" "$@"', name, "end"), CALL)
    assert result.checked() == f"2|{name}|end|"


def test_folder_and_environment(transport: Transport) -> None:
    folder = f"{transport.work_dir}/a 'folder'"
    make_folders(transport, [folder], CALL)
    command = Command(("sh", "-c", 'echo "$KEY"; basename "$PWD"'), folder, {"KEY": "a;b 'c' $d"})
    assert transport.shell(command, CALL).checked() == "a;b 'c' $d\na 'folder'\n"


def test_a_missing_program_is_an_error(transport: Transport) -> None:
    with pytest.raises(CommandError, match="exit code 127"):
        transport.shell(Command(("hyco_runner_absent",)), CALL).checked()


def test_a_missing_folder_is_an_error(transport: Transport) -> None:
    assert transport.shell(Command(("true",), f"{transport.work_dir}/absent"), CALL).exit_code != 0


def test_a_syntax_error_has_an_exit_code(transport: Transport) -> None:
    assert transport.shell(script("if then fi ("), CALL).exit_code != 0


def test_a_killed_command_has_an_exit_code(transport: Transport) -> None:
    assert transport.shell(script("kill -9 $$"), CALL).exit_code == 128 + 9


def test_a_marker_in_the_output_ends_nothing(transport: Transport) -> None:
    forged = "HYCO_END_00000000:0\nrest\n"
    assert transport.shell(script(f"printf '{forged}'; exit 5"), CALL).exit_code == 5
    assert list(transport.stream(script(f"printf '{forged}'"), CALL)) == forged.splitlines()


def test_a_hanging_command_is_ended_on_both_sides(transport: Transport, seconds: str) -> None:
    started = time.monotonic()
    with pytest.raises(CallTimeoutError, match=r"`sleep \d+` on .* did not end within 0\.5 s"):
        transport.shell(Command(("sleep", seconds)), Timeout(0.5))
    assert time.monotonic() - started < 5
    assert wait_until(lambda: not _running(seconds))


def test_a_timeout_quotes_what_came_last(transport: Transport) -> None:
    with pytest.raises(CallTimeoutError, match="loading context"):
        transport.shell(script("echo loading context; exec sleep 60"), Timeout(1.0))


def test_lines_arrive_while_the_command_runs(transport: Transport) -> None:
    gate = f"{transport.work_dir}/gate"
    waits = script('echo first; while [ ! -e "$1" ]; do sleep 0.02; done; echo second', gate)
    stream = transport.stream(waits, CALL)
    assert next(stream) == "first"
    transport.shell(Command(("touch", gate)), CALL).checked()
    assert list(stream) == ["second"]


@pytest.mark.parametrize("text", ["", "a\n", "a\nb", "\n", "a\n\n\nb\n\n", '{"ms": 1.5}\n{"end": true}\n'])
def test_a_stream_yields_each_line(transport: Transport, text: str) -> None:
    assert list(transport.stream(Command(("printf", "%s", text)), CALL)) == text.splitlines()


def test_a_stream_ends_with_the_command_s_failure(transport: Transport) -> None:
    stream = transport.stream(script("echo 1; echo no such context >&2; exit 3"), CALL)
    assert next(stream) == "1"
    with pytest.raises(CommandError, match=r"exit code 3 .*no such context"):
        next(stream)


def test_a_silent_stream_is_ended(transport: Transport, seconds: str) -> None:
    stream = transport.stream(script("echo 1; exec sleep $1", seconds), Timeout(20.0, silence_s=0.5))
    assert next(stream) == "1"
    with pytest.raises(CallTimeoutError, match=r"printed nothing for 0\.5 s"):
        next(stream)
    assert wait_until(lambda: not _running(seconds))


def test_a_stream_is_bounded_as_a_whole(transport: Transport) -> None:
    stream = transport.stream(script("while :; do echo x; sleep 0.1; done"), Timeout(0.5, silence_s=10.0))
    with pytest.raises(CallTimeoutError, match=r"did not end within 0\.5 s"):
        list(stream)


def test_closing_a_stream_ends_the_command(transport: Transport, seconds: str) -> None:
    stream = transport.stream(script("echo 1; exec sleep $1", seconds), CALL)
    assert next(stream) == "1"
    assert wait_until(lambda: _running(seconds))
    stream.close()
    assert wait_until(lambda: not _running(seconds))


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_file_goes_there_and_comes_back(transport: Transport, tmp_path: Path, name: str) -> None:
    content = os.urandom(100_001)
    source = tmp_path / "source"
    source.write_bytes(content)
    source.chmod(0o755)
    remote = f"{transport.work_dir}/{name}"
    transport.push_file(source, remote, CALL)
    assert describe_remote(transport, [remote], CALL) == [describe_file(source)]
    assert transport.shell(script('[ -x "$1" ]', remote), CALL).exit_code == 0
    back = tmp_path / "back"
    assert pull_verified(transport, remote, back, CALL).size_bytes == 100_001
    assert back.read_bytes() == content
    assert [path.name for path in tmp_path.glob("*.part")] == []
    remove(transport, [remote], CALL)
    assert describe_remote(transport, [remote], CALL) == [None]


def test_sizes_and_hashes_of_many_files(transport: Transport) -> None:
    paths = [f"{transport.work_dir}/{i}" for i in range(70)]
    transport.shell(script('for f do printf abc > "$f"; done', *paths[:-2]), CALL).checked()
    transport.shell(Command(("touch", paths[-2])), CALL).checked()
    described = describe_remote(transport, paths, CALL)
    assert described[:-2] == [RemoteFile(3, SHA256_OF_ABC)] * 68
    assert described[-2:] == [RemoteFile(0, SHA256_OF_NOTHING), None]


def test_a_folder_is_no_file(transport: Transport) -> None:
    with pytest.raises(DeviceError, match="is folder"):
        describe_remote(transport, [transport.work_dir], CALL)


def test_pulling_what_is_not_there(transport: Transport, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="absent"):
        transport.pull_file(f"{transport.work_dir}/absent", tmp_path / "back", CALL)
    with pytest.raises(DeviceError, match="does not exist"):
        pull_verified(transport, f"{transport.work_dir}/absent", tmp_path / "back", CALL)
    assert not (tmp_path / "back").exists()
    assert not (tmp_path / "back.part").exists()


@pytest.mark.parametrize("path", ["", ".", "..", "sub/../..", "sub/../../other"])
def test_only_what_is_below_the_folder_is_removed(transport: Transport, path: str) -> None:
    kept = f"{transport.work_dir}/kept"
    transport.shell(Command(("touch", kept)), CALL).checked()
    with pytest.raises(DeviceError, match="not removed"):
        remove(transport, [kept, f"{transport.work_dir}/{path}"], CALL)
    assert describe_remote(transport, [kept], CALL) == [RemoteFile(0, SHA256_OF_NOTHING)]


def test_free_space_is_the_file_system_s(transport: Transport, tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    free = status.f_bavail * status.f_frsize
    assert free_bytes(transport, transport.work_dir, CALL) == pytest.approx(free, rel=0.1)


def test_a_forwarded_port_reaches_the_device(transport: Transport) -> None:
    with _echo_server() as remote_port, transport.forward(remote_port, CALL) as local_port:
        with socket.create_connection(("127.0.0.1", local_port), timeout=10) as client:
            client.sendall(b"draft")
            assert client.recv(5) == b"DRAFT"
        if not isinstance(transport, LocalTransport):
            assert local_port != remote_port
    if not isinstance(transport, LocalTransport):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", local_port), timeout=10)


def test_local_files_stay_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    transport, source = LocalTransport(tmp_path / "root"), tmp_path / "source"
    source.write_bytes(b"abc")
    for remote in ("../outside", "/tmp/outside", f"{transport.work_dir}/../outside"):
        with pytest.raises(DeviceError, match="outside"):
            transport.push_file(source, remote, CALL)
    assert not (tmp_path / "outside").exists()


def test_a_local_folder_exists(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        LocalTransport(tmp_path / "absent")


@pytest.mark.parametrize("limit_s", [0, -1.0, float("nan")])
def test_a_timeout_is_positive(limit_s: float) -> None:
    with pytest.raises(UsageError, match="not positive"):
        Timeout(limit_s)
    with pytest.raises(UsageError, match="not positive"):
        Timeout(1.0, silence_s=limit_s)


def test_a_command_that_no_shell_can_run_is_refused() -> None:
    with pytest.raises(UsageError, match="name of a program"):
        Command(())
    with pytest.raises(UsageError, match="no name of an environment variable"):
        Command(("true",), env={"A;B": "1"})
    with pytest.raises(UsageError, match="NUL"):
        Command(("echo", "a\0b"))


def _running(seconds: str) -> bool:
    """Whether a `sleep` for this time runs on this machine."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
    return False


@contextlib.contextmanager
def _echo_server() -> Iterator[int]:
    """A server on this machine, which plays the device's, that answers once in capitals."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(5).upper())

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)
