"""`hyco-npu doctor`: what works on this machine and on a phone, what does not, and what to do about it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, stderr_console

if TYPE_CHECKING:
    from rich.console import Console

    from device_runner.doctor import Report

app = typer.Typer()

_STYLES = {"ok": "green", "problem": "bold red", "not_checked": "yellow"}


@command(app, "doctor", example="hyco-npu doctor --device R3CT10ABCDE --bundle mtp.bundle --bundle slm.bundle")
def doctor(
    device: Annotated[
        str | None, typer.Option(metavar="SERIAL", help="The phone to examine.", show_default="the only usable one")
    ] = None,
    bundle: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="A bundle that is to run there; give it once for each.")
    ] = None,
    runner: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that `hyco-npu runner build` made.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Examine this machine and a phone; exit code 1 if there is a problem. Nothing is changed."""
    from device_runner.doctor import Options, run_doctor

    with stderr_console().status("examining"):
        report = run_doctor(Options(device, tuple(bundle or ()), runner))
    checks = [{**dataclasses.asdict(check), "status": check.status.value} for check in report.checks]
    emit({"checks": checks, "ok": report.ok}, as_json, lambda console: render_report(console, report))
    if not report.ok:
        raise typer.Exit(1)


def render_report(console: Console, report: Report) -> None:
    """A row a check, then how many ended in which way."""
    from collections import Counter

    from rich.markup import escape
    from rich.table import Table

    table = Table(show_lines=True)
    for column in ("Check", "Status", "Found", "What to do"):
        table.add_column(column, overflow="fold")
    for check in report.checks:
        status = check.status.value
        shown = f"[{_STYLES[status]}]{status.replace('_', ' ')}[/]"
        table.add_row(escape(check.name), shown, escape(check.found), escape(check.what_to_do or ""))
    console.print(table)
    counts = Counter(check.status.value for check in report.checks)
    console.print(", ".join(f"{counts[status]} {status.replace('_', ' ')}" for status in _STYLES), highlight=False)
