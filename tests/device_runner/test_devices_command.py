"""`hyco-npu devices` as a user and a script see it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hyco_npu.cli import app
from tests.device_runner.phone import Authorization, Phone
from tests.device_runner.samples import thermal_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbTransport
    from tests.device_runner.fake_adb import FakeAdb


@pytest.mark.adb
def test_phones_in_a_table_and_as_json(tmp_path: Path, connect: Callable[[Phone], AdbTransport]) -> None:
    healthy, locked = Phone(tmp_path / "1"), Phone(tmp_path / "2", authorization=Authorization.REFUSES)
    healthy.set_dumpsys("thermalservice", thermal_text(2, 39.5))
    serials = [connect(healthy).serial, connect(locked).serial]

    plain = CliRunner().invoke(app, ["devices"], env={"COLUMNS": "160"})
    assert plain.exit_code == 0, plain.output
    for text in (*serials, "SM_S948", "SM8850", "2 (moderate)", "39.5", "accept the dialog"):
        assert text in plain.stdout

    result = CliRunner().invoke(app, ["devices", "--json"])
    assert result.exit_code == 0
    found = {device["serial"]: device for device in json.loads(result.stdout)["devices"]}
    assert found[serials[0]]["identity"]["soc_model"] == "SM8850"
    assert found[serials[0]]["thermal"]["status"] == 2
    assert found[serials[0]]["problem"] is None
    assert found[serials[1]]["state"] == "unauthorized"
    assert "accept the dialog" in found[serials[1]]["problem"]


def test_no_phone(fake_adb: Callable[..., FakeAdb], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_adb(devices="printf 'List of devices attached\\n\\n'")
    monkeypatch.setenv("PATH", str(fake.log.parent), prepend=":")
    plain = CliRunner().invoke(app, ["devices"])
    assert (plain.exit_code, plain.stdout.startswith("adb lists no device")) == (0, True)
    assert json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout) == {"devices": []}


def test_no_adb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = CliRunner().invoke(app, ["devices"])
    assert result.exit_code == 1
    assert result.stderr == "error: adb is not installed: `apt install adb`, or Google's platform-tools on the PATH\n"
