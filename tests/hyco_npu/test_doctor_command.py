"""`hyco-npu doctor` as a user and a script see it, without a phone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from device_runner.doctor import Check, Options, Report, Status, run
from hyco_npu.cli import app
from tests.device_runner.doctor.stand_ins import running_server

if TYPE_CHECKING:
    from pathlib import Path

GOOD = Check("memory", Status.OK, "16.0 GB available", None)
BAD = Check("cmake", Status.PROBLEM, "not installed", "apt-get install cmake")
OPEN = Check("device", Status.NOT_CHECKED, "2 are usable: [a], b", "name one: --device SERIAL")


def report(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> list[Options]:
    """Let the examination give these checks; the options that it gets."""
    given: list[Options] = []

    def examined(options: Options) -> Report:
        given.append(options)
        return Report(checks)

    monkeypatch.setattr("device_runner.doctor.run_doctor", examined)
    return given


@pytest.mark.parametrize(("checks", "code"), [((GOOD, OPEN), 0), ((GOOD, BAD, OPEN), 1), ((), 0)])
def test_exit_code_and_json(monkeypatch: pytest.MonkeyPatch, checks: tuple[Check, ...], code: int) -> None:
    report(monkeypatch, *checks)
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == code
    assert json.loads(done.stdout) == {
        "checks": [
            {"name": one.name, "status": one.status.value, "found": one.found, "what_to_do": one.what_to_do}
            for one in checks
        ],
        "ok": code == 0,
    }


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    report(monkeypatch, GOOD, BAD, OPEN)
    done = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "140"})
    assert done.exit_code == 1
    for text in ("not installed", "apt-get install cmake", "not checked", "2 are usable: [a], b"):
        assert text in done.stdout
    assert done.stdout.endswith("1 ok, 1 problem, 1 not checked\n")


def test_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = report(monkeypatch, GOOD)
    arguments = ["--device", "a b", "--bundle", "x", "--bundle", "y", "--runner", str(tmp_path)]
    assert CliRunner().invoke(app, ["doctor", *arguments]).exit_code == 0
    (options,) = given
    assert (options.serial, [str(path) for path in options.bundles], options.runner) == ("a b", ["x", "y"], tmp_path)


@pytest.mark.adb
def test_a_server_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client would end it; it is asked for its version and for nothing else, and adb is not used."""
    monkeypatch.setattr(run, "compiler_checks", list)
    monkeypatch.setattr(run, "python_checks", list)
    with running_server(b"OKAY00040027") as server:
        monkeypatch.setenv("ANDROID_ADB_SERVER_ADDRESS", server.address.host)
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(server.address.port))
        done = CliRunner().invoke(app, ["doctor", "--json"])
        assert server.requests == [b"000chost:version"]
    assert done.exit_code == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["adb client"]["status"] == "ok"
    assert checks["adb server"]["status"] == "problem"
    assert "has version 39" in checks["adb server"]["found"]
    assert checks["device"]["status"] == "not_checked"


def test_pieces_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wrong folders are findings, with the rest of the checks, on a machine without adb and tools."""
    monkeypatch.setattr(run, "compiler_checks", list)
    monkeypatch.setattr(run, "python_checks", list)
    monkeypatch.setenv("PATH", "")
    gone = str(tmp_path / "gone")
    done = CliRunner().invoke(app, ["doctor", "--bundle", gone, "--runner", gone, "--json"])
    assert done.exit_code == 1
    checks = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert checks[f"bundle {gone}"] == checks["runner"] == checks["adb client"] == checks["cmake"] == "problem"
    assert checks["adb server"] == checks["device"] == checks["stub and skeleton"] == "not_checked"
