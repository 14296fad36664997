"""A session on this machine is recorded, and replayed without it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from device_runner.errors import CallTimeoutError, CommandError, PushError, RecordingError
from device_runner.local import LocalTransport
from device_runner.push import PushOptions, push_folder
from device_runner.recorded import SCHEMA, RecordedTransport, RecordingTransport
from device_runner.transport import Command, Timeout, script
from tests.device_runner.conftest import CALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from device_runner.transport import Transport


@pytest.fixture
def local(tmp_path: Path) -> LocalTransport:
    (tmp_path / "root").mkdir()
    return LocalTransport(tmp_path / "root")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


def _session(transport: Transport, folder: Path) -> list[object]:
    """One call of each kind, with the outcome of each."""
    source, back = folder / "source", folder / "back"
    source.write_bytes(bytes(range(256)))
    remote = f"{transport.work_dir}/there"
    seen: list[object] = [transport.name, transport.work_dir]
    transport.push_file(source, remote, CALL)
    seen.append(transport.shell(Command(("wc", "-c", remote), env={"A": "1"}), CALL))
    seen.append(list(transport.stream(script("echo 1; echo ü; echo"), CALL)))
    transport.pull_file(remote, back, CALL)
    seen.append(back.read_bytes())
    with transport.forward(4567, CALL) as port:
        seen.append(port)
    lines = []
    with pytest.raises(CommandError) as failed:
        lines.extend(_each(transport.stream(script("echo 1; exit 3"), CALL), seen))
    seen.append(str(failed.value))
    with pytest.raises(CallTimeoutError) as late:
        transport.shell(Command(("sleep", "30")), Timeout(0.3))
    seen.append(str(late.value))
    with pytest.raises(PushError) as refused:
        transport.push_file(folder / "absent", remote, CALL)
    return [*seen, str(refused.value)]


def _each(lines: Iterable[str], seen: list[object]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line


def test_a_replay_gives_what_was_recorded(local: LocalTransport, file: Path, tmp_path: Path) -> None:
    recorded = _session(RecordingTransport(local, file), tmp_path)
    replay = RecordedTransport(file)
    assert _session(replay, tmp_path) == recorded
    assert replay.remaining == 0
    assert json.loads(file.read_text().splitlines()[0])["schema"] == SCHEMA


def test_a_whole_push_can_be_replayed(local: LocalTransport, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"abc")
    options = PushOptions("bundle")
    recorded = push_folder(RecordingTransport(local, file), folder, options)
    replayed = push_folder(RecordedTransport(file), folder, options)
    assert (replayed.remote, replayed.pushed) == (recorded.remote, ("a.bin",))


def test_another_call_than_the_recorded_one_is_an_error(local: LocalTransport, file: Path) -> None:
    RecordingTransport(local, file).shell(Command(("echo", "1")), CALL)
    replay = RecordedTransport(file)
    with pytest.raises(RecordingError, match="call 1 of"):
        replay.shell(Command(("echo", "2")), CALL)
    with pytest.raises(RecordingError, match="call 1 of"):
        next(replay.stream(Command(("echo", "1")), CALL))
    replay.shell(Command(("echo", "1")), CALL)
    with pytest.raises(RecordingError, match="holds 1 calls"):
        replay.shell(Command(("echo", "1")), CALL)


@pytest.mark.parametrize("content", ["", "not json\n", "[]\n", '{"schema": "hyco-npu/device-session/9"}\n'])
def test_a_file_that_is_no_recording(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(RecordingError, match="session"):
        RecordedTransport(file)


def test_a_recording_that_is_absent(file: Path) -> None:
    with pytest.raises(RecordingError, match="session"):
        RecordedTransport(file)
