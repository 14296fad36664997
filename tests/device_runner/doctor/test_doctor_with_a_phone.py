"""`hyco-npu doctor` against a phone behind the real adb client and server."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from device_runner.doctor import run
from device_runner.doctor.adb_server import ServerAddress, server_address, server_version
from device_runner.transport import Timeout
from hyco_npu.cli import app
from tests.device_runner.phone import Authorization, Phone
from tests.device_runner.samples import BATTERY_TEXT, CPU_FILES, thermal_text
from tests.export.bundle.builders import write_example

from .conftest import BUILD, OTHER_BUILD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbClient, AdbTransport
    from device_runner.runner_folder import RunnerFolder
    from tests.device_runner.fake_adb import FakeAdb

pytestmark = pytest.mark.adb
NODE, VENDOR = "/data/local/tmp/dev/fastrpc-cdsp", "/data/local/tmp/vendor/lib64"
ON_THE_PHONE = [
    "identity", "abi", "android version", "chip", "bundle: chip", "stub and skeleton",
    "libraries of the system", "unsigned domain", "selinux", "selinux denials", "free space", "thermal status",
    "battery", "battery saver", "stay awake", "clocks",
]  # fmt: skip


@pytest.fixture
def healthy(phone: Phone, monkeypatch: pytest.MonkeyPatch) -> Phone:
    """A phone on which everything is as it should be; its node and libraries lie where the tests' phone has room."""
    phone.set_dumpsys("thermalservice", thermal_text())
    phone.set_dumpsys("battery", BATTERY_TEXT)
    phone.set_command("logcat", "#!/bin/sh\necho --------- beginning of main\n")
    phone.set_command("settings", '#!/bin/sh\ncase "$3" in low_power) echo 0;; *) echo 3;; esac\n')
    for name, value in CPU_FILES.items():
        path = phone.root / "sys/devices/system/cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    phone.path(NODE).parent.mkdir()
    phone.path(NODE).touch()
    monkeypatch.setattr(run, "unsigned_domain", partial(run.unsigned_domain, nodes=(NODE,)))
    monkeypatch.setattr(run, "system_libraries", partial(run.system_libraries, folders=(VENDOR,)))
    return phone


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checks of this machine that take seconds; one test here makes them all."""
    monkeypatch.setattr(run, "compiler_checks", list)
    monkeypatch.setattr(run, "python_checks", list)


@pytest.fixture
def pieces(tmp_path: Path, write_runner: Callable[..., RunnerFolder]) -> list[object]:
    """A bundle and a runner that fit the phone, as arguments."""
    write_example(tmp_path / "mtp.bundle")
    return ["--bundle", tmp_path / "mtp.bundle", "--runner", write_runner().folder]


def doctor(*arguments: object) -> tuple[int, dict[str, Any]]:
    """The exit code and the checks by their name, without the bundle's path."""
    result = CliRunner().invoke(app, ["doctor", *map(str, arguments), "--json"])
    report = json.loads(result.stdout)
    assert report.keys() == {"checks", "ok"}
    assert report["ok"] is (result.exit_code == 0)
    for check in report["checks"]:
        assert check.keys() == {"name", "status", "found", "what_to_do"}
    checks = {re.sub(r"^bundle [^:]*", "bundle", check["name"]): check for check in report["checks"]}
    assert len(checks) == len(report["checks"])
    return result.exit_code, checks


@pytest.mark.htp
@pytest.mark.native
def test_all_is_well(healthy: Phone, connect: Callable[[Phone], AdbTransport], pieces: list[object]) -> None:
    """Every check of both machines."""
    serial = connect(healthy).serial
    code, checks = doctor("--device", serial, *pieces)
    assert {name: check["status"] for name, check in checks.items() if check["status"] != "ok"} == {}
    assert code == 0
    assert list(checks)[-len(ON_THE_PHONE) :] == ON_THE_PHONE
    assert checks["device"]["found"] == serial
    assert checks["chip"]["found"] == "SM8850: Galaxy S26, soc_model 87, v81"
    assert {"python", "packages", "torch", "onnx", "onnxruntime", "qnn build", "compiler", "simulator"} <= checks.keys()
    assert {"cmake", "c++ compiler", "nlohmann json", "memory", "adb client", "adb server"} <= checks.keys()


@pytest.mark.usefixtures("no_compiler")
def test_every_problem_is_found(
    healthy: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path, write_runner: Callable[..., RunnerFolder]
) -> None:
    """One thing after the other is wrong with the phone and the pieces; each is told, and none hides another."""
    healthy.set_properties(ro_soc_model="SM8750", ro_build_version_release="9")
    healthy.set_dumpsys("thermalservice", thermal_text(3, 44.0))
    healthy.set_dumpsys("battery", BATTERY_TEXT.replace("level: 84", "level: 7"))
    healthy.set_command("settings", '#!/bin/sh\ncase "$3" in low_power) echo 1;; *) echo 0;; esac\n')
    healthy.set_command("df", "#!/bin/sh\necho /dev/block/dm-9 9 8 4 91% /data\n")
    healthy.path(NODE).unlink()
    healthy.path(VENDOR).mkdir(parents=True)
    (healthy.path(VENDOR) / "libQnnHtp.so").write_bytes(b"\0" + OTHER_BUILD.encode() + b"\0")
    (healthy.root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq").write_text("1000000\n")
    write_example(tmp_path / "mtp.bundle")
    runner = write_runner(abi="x86_64-linux")
    serial = connect(healthy).serial
    code, checks = doctor("--device", serial, "--bundle", tmp_path / "mtp.bundle", "--runner", runner.folder)
    assert code == 1
    assert [name for name in checks if name in ON_THE_PHONE] == ON_THE_PHONE
    problems = {name for name in ON_THE_PHONE if checks[name]["status"] == "problem"}
    assert problems == set(ON_THE_PHONE) - {"identity", "chip", "selinux", "selinux denials"}
    assert "compiled for sm8850, not for sm8750" in checks["bundle: chip"]["found"]
    assert "libQnnHtpV79Stub.so, libQnnHtpV79Skel.so missing" in checks["stub and skeleton"]["found"]
    assert f"{OTHER_BUILD}: " in checks["libraries of the system"]["found"]
    assert f"pushed: {BUILD}" in checks["libraries of the system"]["found"]


@pytest.mark.usefixtures("no_compiler")
def test_a_phone_that_goes_away(healthy: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    """The first call breaks; the rest is not checked, and the command ends."""
    serial = connect(healthy).serial
    healthy.faults.drop_shell_after = 0
    code, checks = doctor("--device", serial)
    assert code == 1
    assert checks["identity"]["status"] == "problem"
    asked = ["thermal status", "battery", "clocks", "selinux", "libraries of the system", "unsigned domain"]
    assert {checks[name]["status"] for name in asked} == {"not_checked"}
    assert "an earlier call got no answer" in checks["battery"]["found"]
    assert sum(service.startswith("shell") for service in healthy.services) == 1


@pytest.mark.usefixtures("no_compiler")
def test_a_locked_and_an_unknown_phone(tmp_path: Path, connect: Callable[[Phone], AdbTransport]) -> None:
    serial = connect(Phone(tmp_path / "locked", authorization=Authorization.REFUSES)).serial
    code, checks = doctor("--device", serial)
    assert code == 1
    assert "accept the dialog" in checks["connected devices"]["what_to_do"]
    assert checks["device"]["status"] == "not_checked"
    assert "identity" not in checks
    code, checks = doctor("--device", "R3CT10ABSENT")
    assert code == 1
    assert "no device has the serial 'R3CT10ABSENT'" in checks["device"]["found"]


@pytest.mark.usefixtures("no_compiler")
def test_several_phones(tmp_path: Path, connect: Callable[[Phone], AdbTransport]) -> None:
    serials = [connect(Phone(tmp_path / name)).serial for name in ("1", "2")]
    _, checks = doctor()
    assert checks["device"]["status"] == "not_checked"
    assert all(serial in checks["device"]["found"] for serial in serials)
    assert checks["device"]["what_to_do"] == "name one: --device SERIAL"


@pytest.mark.usefixtures("no_compiler")
def test_an_older_client_does_not_end_the_real_server(
    adb: AdbClient, fake_adb: Callable[..., FakeAdb], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server_address()
    assert isinstance(address, ServerAddress)
    number = server_version(address, Timeout(10))
    fake = fake_adb(version="echo 'Android Debug Bridge version 1.0.39'")
    monkeypatch.setenv("PATH", str(fake.log.parent), prepend=":")
    code, checks = doctor()
    assert code == 1
    assert checks["adb server"]["status"] == "problem"
    assert f"has version {number}, the client 39" in checks["adb server"]["found"]
    assert checks["device"]["status"] == "not_checked"
    assert fake.calls == [["version"]]
    assert server_version(address, Timeout(10)) == number
