"""A result for people and for other programs: `render` on the screen, `write_csv`, `write_html`.

The verdict comes first and every time carries the name of what it was measured on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyco_npu.bench import cells
from hyco_npu.bench.csv_file import save_csv, save_text
from hyco_npu.bench.estimate_beside import PAPER_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from hyco_npu.bench.result import BenchResult


def render(console: Console, result: BenchResult) -> None:
    """The verdict, the comparison of trees, and the tables."""
    _verdict(console, result)
    for line in cells.tree_lines(result):
        _line(console, f"trees {line}")
    verdict = "" if result.valid else "INVALID: "
    for summary in result.runs:
        title = f"{verdict}{summary.run.name}: ms, {summary.time_label}"
        console.print(_table(title, ("part", *cells.STATISTICS), cells.part_rows(summary)))
        for name, value in cells.facts_of_run(summary):
            _line(console, f"{name}: {value}")
    for comparison in result.comparisons:
        _line(console, f"{cells.comparison_text(comparison)} ({result.time_label})")
    _beside(console, result)
    for summary in result.profiled:
        name = f"{summary.run.name}, profiled: no timing: ms, {summary.time_label}"
        console.print(_table(name, ("part", *cells.STATISTICS), cells.part_rows(summary)))
    console.print(_table("Blocks", cells.BLOCKS, cells.block_rows(result)))


def write_csv(result: BenchResult, path: Path) -> None:
    """Write every round as a line, over an older file; raises UsageError where that cannot be done."""
    save_csv(result.measurement, path)


def write_html(result: BenchResult, path: Path) -> None:
    """Write the report as one file that needs no other, over an older one; raises UsageError as `write_csv`."""
    from hyco_npu.bench.html_page import html_text

    save_text(path, html_text(result))


def _verdict(console: Console, result: BenchResult) -> None:
    """Valid or not and why, the warnings, and what ran."""
    console.print("[bold green]VALID[/bold green]" if result.valid else "[bold red]INVALID[/bold red]")
    for reason in result.reasons:
        _line(console, f"- {reason}")
    for warning in result.warnings:
        _line(console, f"warning: {warning}")
    for name, value in cells.about(result):
        _line(console, f"{name}: {value}")


def _beside(console: Console, result: BenchResult) -> None:
    """The estimate and, for a phone's NPU, the paper's figures, each in a table of its own."""
    beside = result.estimate
    if beside is not None:
        title = f"Beside the estimate: ms; {beside.label}; measured: {result.time_label}"
        console.print(_table(title, ("", *cells.ESTIMATE), cells.estimate_rows(beside)))
        _line(console, cells.estimate_note(beside))
    paper = list(cells.paper_rows(result))
    if paper:
        head = ("", PAPER_LABEL, f"measured, median, {result.time_label}")
        console.print(_table("Beside the paper: ms; another device and other weights", head, paper))


def _line(console: Console, text: str) -> None:
    """A line as it is: serials and paths may hold what rich takes for markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(title: str, head: Iterable[str], rows: Iterable[cells.Row]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title))
    for index, column in enumerate(head):
        table.add_column(escape(column), justify="right" if index else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*map(escape, row))
    return table
