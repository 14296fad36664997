"""Every round of a measurement as a line of CSV: the raw series, warm-up and profiled rounds among them."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from calibration.jsonfile import replace_file
from hyco_npu.bench.runs import other_ms, part_names, time_label, warm_up_of
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_runner.facts import Facts
    from device_runner.measurement import Block, Measurement

PLACE = ("label", "perf_mode", "provider", "block", "profiled", "warm_up", "number", "text", "start_ns")
HEAT = ("thermal_status_before", "thermal_status_after", "skin_c_before", "skin_c_after")


def csv_text(measurement: Measurement) -> str:
    """The file's text. Times are in ms and their columns are named by whose they are; an absent value is empty.

    `profiled` and `warm_up` are 1 or 0; floats are written so that reading gives the same number.
    """
    rounds = [sample for block in measurement.blocks for sample in block.rounds]
    parts = part_names(rounds)
    labels = " / ".join(dict.fromkeys(time_label(block.runner) for block in measurement.blocks))
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    times = (f"{name}_ms [{labels}]" for name in ("total", *parts, "other"))
    writer.writerow((*PLACE, *times, "matched", *HEAT))
    for place, block in enumerate(measurement.blocks):
        writer.writerows(_lines(place, block, parts, warm_up_of(measurement)))
    return out.getvalue()


def save_csv(measurement: Measurement, path: Path) -> None:
    """Write it, over an older one; raises UsageError where that cannot be done."""
    save_text(path, csv_text(measurement))


def save_text(path: Path, text: str) -> None:
    """Replace `path` in one step; raises UsageError where it cannot be written."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another place") from error


def _lines(place: int, block: Block, parts: list[str], warm_up: int) -> Iterator[tuple[object, ...]]:
    runner = block.runner
    heat = (_status(block.before), _status(block.after), _skin_c(block.before), _skin_c(block.after))
    for index, sample in enumerate(block.rounds):
        flags = (int(block.profiled), int(index < warm_up))
        yield (
            *(block.bundle, runner.perf_mode, runner.provider, place, *flags),
            *(sample.number, sample.text, sample.start_ns, sample.total_ms),
            *(sample.parts.get(name) for name in parts),
            *(other_ms(sample), sample.matched, *heat),
        )


def _status(facts: Facts | None) -> int | None:
    return None if facts is None or facts.thermal is None else facts.thermal.status


def _skin_c(facts: Facts | None) -> float | None:
    return None if facts is None or facts.thermal is None else facts.thermal.hottest_c("skin")
