"""Space, heat, battery, settings and clocks of a phone, over the real adb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from device_runner.doctor.check import Status
from device_runner.doctor.phone_state import (
    battery,
    battery_saver,
    clocks,
    free_space,
    pushed_bytes,
    stay_awake,
    thermal_status,
)
from tests.device_runner.samples import BATTERY_TEXT, CPU_FILES, thermal_text
from tests.export.bundle.builders import write_example

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.doctor.check import Check
    from device_runner.doctor.device import AskedOnce
    from device_runner.runner_folder import RunnerFolder
    from tests.device_runner.phone import Phone

pytestmark = pytest.mark.adb
DF = "#!/bin/sh\necho Filesystem 1K-blocks Used Available Use% Mounted on\necho /dev/block/dm-9 9 8 {} 91% /data\n"
BLOCK = 8192


def test_bytes_of_a_bundle(tmp_path: Path) -> None:
    """The graph's context and binary, table, keep set and manifest; neither the CPU's graph nor the tokenizer."""
    bundle = write_example(tmp_path / "mtp.bundle")
    names = ("step_ctx.onnx", "step.bin", "tables/embedding.safetensors", "keep_set.json", "manifest.json")
    assert pushed_bytes(bundle) == sum((bundle.folder / name).stat().st_size + BLOCK for name in names)


@pytest.mark.parametrize(("spare_kib", "status"), [(0, Status.OK), (-1, Status.PROBLEM)])
def test_space(
    phone: Phone,
    asked: AskedOnce,
    tmp_path: Path,
    write_runner: Callable[..., RunnerFolder],
    spare_kib: int,
    status: Status,
) -> None:
    bundle, runner = write_example(tmp_path / "mtp.bundle"), write_runner()
    needed = pushed_bytes(bundle) + sum(file.size_bytes + BLOCK for file in runner.description.files)
    phone.set_command("df", DF.format(-(-needed // 1024) + spare_kib))
    check = free_space(asked, runner, (bundle,))
    assert check.status is status
    assert "0.00 GB to push" in check.found


def test_space_with_nothing_to_push(phone: Phone, asked: AskedOnce) -> None:
    phone.set_command("df", DF.format(12_000_000))
    check = free_space(asked, None, ())
    assert check.status is Status.NOT_CHECKED
    assert "12.29 GB in /data/local/tmp" in check.found


@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        (thermal_text(0, 27.3), Status.OK, "0 (none), skin 27.3 °C"),
        (thermal_text(2, 39.5), Status.PROBLEM, "2 (moderate), skin 39.5 °C"),
        (thermal_text(0, override=True), Status.PROBLEM, "fixed by hand"),
        ("Can't find service: thermalservice\n", Status.NOT_CHECKED, "tells no status"),
    ],
)
def test_thermal(phone: Phone, asked: AskedOnce, text: str, status: Status, found: str) -> None:
    phone.set_dumpsys("thermalservice", text)
    expect(thermal_status(asked), status, found)


@pytest.mark.parametrize(
    ("text", "status", "found"),
    [
        (BATTERY_TEXT, Status.OK, "84 %, 32.6 °C, fed by usb"),
        (BATTERY_TEXT.replace("level: 84", "level: 19"), Status.PROBLEM, "19 %"),
        (BATTERY_TEXT.replace("level: 84", "level: 20"), Status.OK, "20 %"),
        (f"  (UPDATES STOPPED -- use 'reset' to restart)\n{BATTERY_TEXT}", Status.PROBLEM, "fixed by hand"),
        ("", Status.NOT_CHECKED, "tells no level"),
    ],
)
def test_battery(phone: Phone, asked: AskedOnce, text: str, status: Status, found: str) -> None:
    phone.set_dumpsys("battery", text)
    expect(battery(asked), status, found)


@pytest.mark.parametrize(
    ("value", "awake", "saver"),
    [
        ("0", Status.PROBLEM, Status.OK),
        ("1", Status.PROBLEM, Status.PROBLEM),  # awake on mains alone
        ("2", Status.OK, Status.NOT_CHECKED),
        ("7", Status.OK, Status.NOT_CHECKED),
        ("null", Status.PROBLEM, Status.OK),
        ("", Status.NOT_CHECKED, Status.NOT_CHECKED),
    ],
)
def test_settings(phone: Phone, asked: AskedOnce, value: str, awake: Status, saver: Status) -> None:
    phone.set_command("settings", f'#!/bin/sh\n[ "$1 $2" = "get global" ] && echo {value}\n')
    assert (stay_awake(asked).status, battery_saver(asked).status) == (awake, saver)


def test_no_settings(asked: AskedOnce) -> None:
    for check in (stay_awake(asked), battery_saver(asked)):
        assert check.status is Status.NOT_CHECKED
        assert "the phone has no `settings`" in check.found


def set_clocks(phone: Phone, **changes: str) -> None:
    for name, value in CPU_FILES.items():
        path = phone.root / "sys/devices/system/cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changes.get(path.name, value) + "\n")


def test_clocks(phone: Phone, asked: AskedOnce) -> None:
    set_clocks(phone)
    expect(
        clocks(asked),
        Status.OK,
        "8 cores, governor walt, limits 3.53 of 3.63 GHz, 4.32 of 4.74 GHz; switched off: 5",
    )


def test_clocks_that_are_held_down(phone: Phone, asked: AskedOnce) -> None:
    set_clocks(phone, scaling_max_freq="3000000")
    expect(
        clocks(asked),
        Status.PROBLEM,
        "limits 3.00 of 3.63 GHz, 3.00 of 4.74 GHz; switched off: 5; held below 80% of their clock: 6, 7",
    )


def test_clocks_governed_for_saving(phone: Phone, asked: AskedOnce) -> None:
    set_clocks(phone, scaling_governor="powersave")
    expect(clocks(asked), Status.PROBLEM, "governed for saving: 0, 1, 2, 3, 4, 5, 6, 7")


def test_clocks_that_may_not_be_read(phone: Phone, asked: AskedOnce) -> None:
    path = phone.root / "sys/devices/system/cpu/online"
    path.parent.mkdir(parents=True)
    path.write_text("0-7\n")
    expect(clocks(asked), Status.NOT_CHECKED, "the shell user may read no clocks of 8 cores")


def expect(check: Check, status: Status, found: str) -> None:
    assert check.status is status, check
    assert found in check.found
    assert (check.what_to_do is not None) is (status is Status.PROBLEM)
