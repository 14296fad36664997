"""A runner that serves on a device: over real adb it drafts what the Python drafter does over the same bundles."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import device_runner.serving
from device_runner.errors import CallTimeoutError, LinkLostError, RunnerError
from device_runner.host_folder import cached_host_runner
from device_runner.local import LocalTransport
from device_runner.runner_command import RunnerSetup
from device_runner.serving import serving
from device_runner.staging import Pair, stage
from device_runner.transport import Command
from export.bundle import open_bundle
from export.hashing import sha256_file
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.drafters.remote import RemoteDrafter
from hyco_npu.decode.protocols import Reply
from tests.device_runner.native.real_bundles import fresh, make_pair, record_texts
from tests.device_runner.serving_stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from device_runner.adb import AdbTransport
    from device_runner.serve_client import ServeClient
    from device_runner.transport import Transport
    from tests.device_runner.native.recorded import Session
    from tests.device_runner.phone import Phone

pytestmark = pytest.mark.native
CONFIG = {"tree": {"nodes": 10}, "mtp": {}, "slm": {"children": 3}}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return make_pair(tmp_path_factory.mktemp("bundles"), CONFIG)


@pytest.fixture
def local(tmp_path: Path) -> LocalTransport:
    folder = tmp_path / "device"
    folder.mkdir()
    return LocalTransport(folder)


def served(transport: Transport, session: Session, scratch: Path, **changes: Any) -> Any:
    """Serving on the device, without a look at whether the bundles fit."""
    runner = cached_host_runner()
    folder = scratch / "staged"
    folder.mkdir()
    pair = Pair("A", open_bundle(session.mtp), open_bundle(session.slm))
    staged = stage(folder, runner, (pair,), "cpu")
    return serving(transport, folder, replace(RunnerSetup(runner, "cpu", None), **changes), staged["A"])


def assert_drafts_as_python(client: ServeClient, session: Session, tmp_path: Path) -> None:
    texts = record_texts(fresh(session), tmp_path / "rounds.safetensors", 5)
    trees = []
    drafter: RemoteDrafter | None = None
    for event, update in texts.requests:
        if event["event"] == "open":
            drafter = RemoteDrafter(client, session.config, Clock())
            continue
        assert drafter is not None
        if event["event"] == "draft":
            trees.append(drafter.draft(event["max_depth"]))
        else:
            answer(drafter, event, update, trees)
    assert len(trees) == len(texts.trees) == 15
    for here, there in zip(texts.trees, trees, strict=True):
        assert (there.token_ids, there.parents, there.sources) == (here.token_ids, here.parents, here.sources)
        assert there.scores == pytest.approx(here.scores, abs=1e-5)


def answer(drafter: RemoteDrafter, event: dict[str, Any], update: Any, trees: list[Any]) -> None:
    reply = Reply(tuple(event.get("accepted", ())), tuple(event["emitted"]), False, update)
    if event["event"] == "begin":
        drafter.begin(event["token_ids"], reply)
    else:
        drafter.commit(trees[-1], reply)


@pytest.mark.adb
def test_texts_over_adb(device: AdbTransport, phone: Phone, session: Session, tmp_path: Path) -> None:
    with served(device, session, tmp_path) as client:
        assert_drafts_as_python(client, session, tmp_path)
    assert not (phone.work_dir / "hyco-npu/serve").exists()
    assert any(service.startswith("tcp:") for service in phone.services)


def test_the_files_go_even_when_the_text_breaks_off(local: LocalTransport, session: Session, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), served(local, session, tmp_path):
        raise ZeroDivisionError
    assert not list(Path(local.work_dir).rglob("hyco_runner"))


def test_a_refusal_is_told_in_the_runners_words(local: LocalTransport, session: Session, tmp_path: Path) -> None:
    with (
        pytest.raises(RunnerError, match="the first request must be open, not draft"),
        served(local, session, tmp_path) as client,
    ):
        client.request({"event": "draft", "max_depth": 1})


def test_a_runner_that_cannot_start_says_why(local: LocalTransport, session: Session, tmp_path: Path) -> None:
    with (
        pytest.raises(RunnerError, match=r"did not start: .*cpu-mask"),
        served(local, session, tmp_path, cpu_mask="zz"),
    ):
        pass


def test_a_runner_that_stays_silent_is_an_error(
    local: LocalTransport, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_runner.serving, "SILENCE_S", {"cpu": 0.3})
    monkeypatch.setattr(RunnerSetup, "command", lambda *_: Command(("sleep", "60")))
    with pytest.raises(CallTimeoutError, match=r"printed nothing for 0\.3 s"), served(local, session, tmp_path):
        pass
    assert not list(Path(local.work_dir).rglob("hyco_runner"))


@pytest.mark.adb
def test_a_link_that_breaks_is_an_error(
    phone: Phone, connect: Callable[[Phone], AdbTransport], session: Session, tmp_path: Path
) -> None:
    def broken() -> None:
        with served(connect(phone), session, tmp_path) as client:
            drafter = RemoteDrafter(client, session.config, Clock())
            kill_runner(phone)
            drafter.draft(3)

    with pytest.raises(LinkLostError):
        broken()


def test_a_forward_that_leads_nowhere_is_an_error(
    local: LocalTransport, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As adb's own does: it takes the connection here and ends it when the device's port refuses."""
    monkeypatch.setattr(device_runner.serving, "CLIENT_S", 1)
    with stand_in(lambda event, arrays: b"") as port:
        monkeypatch.setattr(LocalTransport, "forward", lambda *_: contextlib.nullcontext(port))
        with (
            pytest.raises(RunnerError, match="the runner says: no client came within 1 s"),
            served(local, session, tmp_path) as client,
        ):
            RemoteDrafter(client, session.config, Clock())


def kill_runner(phone: Phone) -> None:
    """End the process whose program lies below the phone's folder."""
    for process in _processes():
        program = process / "exe"
        try:
            inside = str(program.readlink()).startswith(str(phone.root))
        except OSError:
            continue
        if inside:
            os.kill(int(process.name), signal.SIGKILL)


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def test_the_pushed_runner_is_the_hosts(local: LocalTransport, session: Session, tmp_path: Path) -> None:
    runner = cached_host_runner()
    with served(local, session, tmp_path):
        pushed = Path(local.work_dir) / "hyco-npu/serve/runner/hyco_runner"
        assert sha256_file(pushed) == sha256_file(runner.executable)
