"""Times of single runs out of the CSV that qnn-profile-viewer writes.

    <lines about versions>
    Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier
    15423000001,INIT,9009,US,BACKEND,ROOT,QNN (load binary) time
    15423026395,EXECUTE,3301,US,NETRUN,ROOT,Graph 0: NAME
    15423026395,EXECUTE,1851,US,BACKEND,ROOT,QNN accelerator (execute) time
    15423026395,EXECUTE,3278,US,BACKEND,ROOT,QNN (execute) time

One group of EXECUTE rows a run. NETRUN is what qnn-net-run saw around graphExecute; `QNN (execute) time` the backend's
whole call; `QNN accelerator (execute) time` without the call's way to the NPU and back. The form is taken from public
users of the tool (QAIRT 2.4x), not run here; a figure that is missing, is there too often, or has another unit is an
error.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.graph_errors import NetRunError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_COLUMNS = ("Message", "Time", "Unit of Measurement", "Timing Source", "Event Level", "Event Identifier")
_BACKEND_TIMES = {"qnn": "QNN (execute) time", "accelerator": "QNN accelerator (execute) time"}
_LOAD = "QNN (load binary) time"
_MICROSECONDS = "US"


@dataclass(frozen=True)
class NetRunTimes:
    """netrun_ms: one value a run. other_ms: the same runs by the backend's clocks, `qnn` and `accelerator`."""

    netrun_ms: tuple[float, ...]
    other_ms: Mapping[str, tuple[float, ...]]
    load_ms: float


@dataclass(frozen=True)
class _Row:
    message: str
    time: str
    unit: str
    source: str
    level: str
    identifier: str


def read_times(path: Path, graph_name: str, inferences: int) -> NetRunTimes:
    """The times of `inferences` runs of the graph that has `graph_name` in its binary.

    Raises:
        NetRunError: no table, another graph, another number of runs, a figure in another unit or none.
    """
    rows = _rows(path)
    executed = [row for row in rows if row.message == "EXECUTE"]
    netrun = [row for row in executed if row.source == "NETRUN" and row.level == "ROOT" and row.unit == _MICROSECONDS]
    others = {row.identifier for row in netrun if graph_name not in row.identifier}
    if others:
        raise NetRunError(f"the profile is of {sorted(others)[:3]}, not of {graph_name!r} alone")
    series = {name: _named(executed, text) for name, text in _BACKEND_TIMES.items()}
    loads = _named([row for row in rows if row.message == "INIT"], _LOAD)
    for what, found, expected in (
        ("EXECUTE rows of NETRUN", netrun, inferences),
        *((repr(_BACKEND_TIMES[name]), found, inferences) for name, found in series.items()),
        (repr(_LOAD), loads, 1),
    ):
        if len(found) != expected:
            raise NetRunError(f"the profile has {len(found)} {what}, {expected} are expected; {_seen(rows)}")
    return NetRunTimes(
        netrun_ms=tuple(_ms(row) for row in netrun),
        other_ms={name: tuple(_ms(row) for row in found) for name, found in series.items()},
        load_ms=_ms(loads[0]),
    )


def _rows(path: Path) -> list[_Row]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        table = [[cell.strip() for cell in row] for row in csv.reader(file)]
    header = next((place for place, row in enumerate(table) if set(_COLUMNS) <= set(row)), None)
    if header is None:
        start = " / ".join(",".join(row) for row in table[:3]) or "an empty file"
        raise NetRunError(f"qnn-profile-viewer wrote no table with the columns {', '.join(_COLUMNS)}, but {start}")
    places = [table[header].index(name) for name in _COLUMNS]
    return [_Row(*(row[place] for place in places)) for row in table[header + 1 :] if len(row) > max(places)]


def _named(rows: list[_Row], identifier: str) -> list[_Row]:
    return [row for row in rows if row.identifier == identifier and row.source == "BACKEND"]


def _ms(row: _Row) -> float:
    try:
        microseconds = float(row.time)
    except ValueError:
        microseconds = float("nan")
    if row.unit != _MICROSECONDS or not microseconds > 0:
        raise NetRunError(f"the profile gives {row.identifier!r} as {row.time!r} {row.unit}: microseconds are expected")
    return microseconds / 1e3


def _seen(rows: list[_Row]) -> str:
    names = sorted({f"{row.message} {row.source}: {row.identifier}" for row in rows})
    return f"it has: {'; '.join(names[:12]) or 'nothing'}"
