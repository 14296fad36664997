"""Which runner, provider and modes follow from a device and what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from device_runner.devices import Identity
from device_runner.errors import FactError
from device_runner.native_errors import RunnerFolderError
from device_runner.transport import Timeout, script
from hyco_npu.bench import choose
from hyco_npu.bench.choose import chosen_modes, chosen_provider, chosen_runner, opened_device
from quant.errors import UsageError
from tests.device_runner.scripted_runner import scripted_runner

if TYPE_CHECKING:
    from device_runner.runner_folder import Provider, RunnerFolder

QNN = "v2.51.0"


def phone(abi: str | None) -> Identity:
    return Identity("SM_S948", "SM8850", None, "16", abi, None)


@pytest.fixture
def for_phones(tmp_path: Path) -> RunnerFolder:
    facts: dict[str, Any] = {"abi": "arm64-v8a", "qnn_build": QNN, "providers": ("cpu", "htp"), "htp_archs": ("v81",)}
    return scripted_runner(tmp_path / "phone", **facts)


def test_the_npu_is_taken_where_its_libraries_are(for_phones: RunnerFolder, tmp_path: Path) -> None:
    here = scripted_runner(tmp_path / "here", qnn_build=QNN, providers=("cpu", "simulator"))
    assert chosen_provider(None, for_phones) == "htp"
    assert chosen_provider(None, here) == "cpu"
    assert chosen_provider("cpu", for_phones) == "cpu"
    assert chosen_provider("simulator", here) == "simulator"


def test_modes_are_the_npus_alone() -> None:
    assert chosen_modes((), "htp") == ("burst", "sustained_high_performance")
    assert chosen_modes(("balanced", "burst", "balanced"), "htp") == ("balanced", "burst")
    assert chosen_modes(("burst",), "cpu") == ()
    assert chosen_modes((), "simulator") == ()


@pytest.mark.parametrize("provider", ["htp", "cpu"])
def test_an_unknown_mode_is_refused_where_it_would_not_be_used_too(provider: Provider) -> None:
    with pytest.raises(UsageError, match="--perf-mode 'bust' is unknown; use burst"):
        chosen_modes(("bust",), provider)


def test_the_runner_is_the_named_one_or_this_machines(
    for_phones: RunnerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "cached_host_runner", lambda: for_phones)
    monkeypatch.chdir(tmp_path)
    assert chosen_runner(None, phone("x86_64")) is for_phones
    assert chosen_runner(for_phones.folder, phone("arm64-v8a")).folder == for_phones.folder
    with pytest.raises(
        UsageError, match=r"the device is arm64-v8a: build a runner for it with `hyco-npu runner build`"
    ):
        chosen_runner(None, phone("arm64-v8a"))
    with pytest.raises(FactError, match="does not tell its processor"):
        chosen_runner(None, phone(None))
    with pytest.raises(RunnerFolderError, match="no runner at"):
        chosen_runner(tmp_path / "none", None)


def test_this_machine_is_a_scratch_folder() -> None:
    with opened_device("local") as device:
        assert device.identity is None
        folder = Path(device.transport.work_dir)
        assert device.transport.shell(script("pwd"), Timeout(20.0)).stdout.strip() == str(folder)
    assert not folder.exists()


def test_a_runner_that_was_built_for_a_phone_is_found_where_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    facts: dict[str, Any] = {"abi": "arm64-v8a", "qnn_build": QNN, "providers": ("cpu", "htp"), "htp_archs": ("v81",)}
    scripted_runner(tmp_path / "phone.runner", **facts)
    assert chosen_runner(None, phone("arm64-v8a")).description.htp_archs == ("v81",)
