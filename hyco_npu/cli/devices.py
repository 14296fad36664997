"""`hyco-npu devices`: which phones adb sees, and what keeps one from being used."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from device_runner.devices import DeviceSummary

app = typer.Typer()


@command(app, "devices", example="hyco-npu devices --json")
def devices(as_json: JsonOption = False) -> None:
    """List the phones that adb sees: chip, Android, thermal status, and what to do where one cannot be used."""
    from device_runner.adb import AdbClient
    from device_runner.devices import summarise_devices

    found = summarise_devices(AdbClient.find())
    result = {"devices": [dataclasses.asdict(device) for device in found]}
    emit(result, as_json, lambda console: render_devices(console, found))


def render_devices(console: Console, found: Sequence[DeviceSummary]) -> None:
    """A row a device, then what is wrong with those that cannot be used."""
    from rich.table import Table

    from device_runner.devices import nothing_connected

    if not found:
        console.print(nothing_connected(), highlight=False, markup=False)
        return
    table = Table("Serial", "State", "Model", "SoC", "Android", "Thermal status", "Skin, °C")
    for device in found:
        table.add_row(*_cells(device))
    console.print(table)
    for device in found:
        if device.problem is not None:
            console.print(device.problem, highlight=False, markup=False, soft_wrap=True)


def _cells(device: DeviceSummary) -> list[str]:
    from rich.markup import escape

    from device_runner.facts import STATUS_NAMES

    identity, thermal = device.identity, device.thermal
    facts = [] if identity is None else [identity.model, identity.soc_model, identity.android_version]
    cells = [escape(device.serial), device.state, *(escape(fact or "-") for fact in facts or (None, None, None))]
    if thermal is None:
        return [*cells, "-", "-"]
    skin_c = thermal.hottest_c("skin")
    name = STATUS_NAMES[thermal.status] if thermal.status < len(STATUS_NAMES) else "unknown"
    return [*cells, f"{thermal.status} ({name})", "-" if skin_c is None else f"{skin_c:.1f}"]
