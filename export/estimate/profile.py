"""The "Performance Estimates" of QNN's profiling CSV: what the compiler expects one pass of a graph to cost.

The file has seven columns: timestamp, message, value, unit, timing source, event level, event identifier. A finished
compile writes its own stages first (how long the compiler took), then the estimates. This module knows the file only:
neither the chip it was made for nor what the numbers are worth.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path

_SECTION = "Performance Estimates"
_VALUE, _UNIT, _EVENT = 2, 3, 6
_COLUMNS = 7
_CYCLES = "Simulated (Accelerator exec cycles{})"
_TIME = "Simulated (Accelerator exec time us{})"
# Field -> (event, unit). QNN gives a count of operations the unit US, so that one is not looked at.
_EVENTS: dict[str, tuple[str, str | None]] = {
    "cycles": (_CYCLES.format(""), "CYCLES"),
    "cycles_low": (_CYCLES.format(" (lower estimate)"), "CYCLES"),
    "cycles_high": (_CYCLES.format(" (upper estimate)"), "CYCLES"),
    "us": (_TIME.format(""), "US"),
    "us_low": (_TIME.format(" (lower estimate)"), "US"),
    "us_high": (_TIME.format(" (upper estimate)"), "US"),
    "input_fill_bytes": ("Input Fill", "BYTES"),
    "intermediate_fill_bytes": ("Intermediate Fill", "BYTES"),
    "intermediate_spill_bytes": ("Intermediate Spill", "BYTES"),
    "output_spill_bytes": ("Output Spill", "BYTES"),
    "missing_costs": ("Missing Ops (Number of Ops with no Costs associated)", None),
}


@dataclass(frozen=True)
class Profile:
    """One pass as the compiler sees it.

    Cycles and microseconds with the compiler's lower and upper estimate; bytes moved from memory into the NPU's own
    (fill) and back (spill), for inputs and weights, for intermediate values that found no room, and for outputs;
    `missing_costs` counts operations that the compiler's model knows no cost for, so that the rest is too low.
    """

    cycles: int
    cycles_low: int
    cycles_high: int
    us: int
    us_low: int
    us_high: int
    input_fill_bytes: int
    intermediate_fill_bytes: int
    intermediate_spill_bytes: int
    output_spill_bytes: int
    missing_costs: int


def read_profile(path: Path) -> Profile:
    """Read the estimates out of a profiling CSV.

    Raises:
        CompileError: no file, no estimates in it (QNN gives none for most chips), an estimate that is absent,
            is given twice (a graph in several parts), has another unit, or is not a whole number >= 0.
    """
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for row in csv.reader(file) if len(row) == _COLUMNS]
    except OSError as error:
        raise CompileError(f"the compiler wrote no profile at {path} ({error})") from error
    names = [row[_EVENT] for row in rows]
    if _SECTION not in names:
        raise CompileError(f"{path.name} has no section {_SECTION!r}: this QNN gives no estimates for the chip")
    estimates = rows[names.index(_SECTION) :]
    return Profile(**{field: _value(path, estimates, *wanted) for field, wanted in _EVENTS.items()})


def _value(path: Path, rows: list[list[str]], event: str, unit: str | None) -> int:
    found = [row for row in rows if row[_EVENT] == event]
    if len(found) != 1:
        given = "is absent" if not found else f"is given {len(found)} times"
        raise CompileError(f"{path.name}: {event!r} {given}; want it once: this QNN writes another form of profile")
    text, stated = found[0][_VALUE].strip(), found[0][_UNIT]
    if unit is not None and stated != unit:
        raise CompileError(f"{path.name}: {event!r} is in {stated!r}; want {unit!r}: this QNN writes another form")
    if not (text.isascii() and text.isdigit()):
        raise CompileError(f"{path.name}: {event!r} is {text!r}; want a whole number >= 0")
    return int(text)
