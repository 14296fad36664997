"""A sweep's result: a row a setting, as CSV, JSON and a picture in one folder.

Intervals are 95 % of a bootstrap over prompts; a ratio is paired: a sample takes the same prompts of both settings.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hyco_npu.family.evaluate import bootstrap_interval
from hyco_npu.sweep.picture import draw_png
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hyco_npu.sweep.plan import Setting
    from hyco_npu.sweep.run import Measured

RECORD_FILE = "sweep.json"
_SCHEMA_VERSION = 1
_RESAMPLES = 10_000
COLUMNS = {
    "prompts": "prompts answered",
    "tokens": "tokens emitted, the prefill's one of each prompt among them",
    "rounds": "rounds of draft and verification, prefills left out",
    "mat": "mean accepted tokens: tokens per round, the bonus token among them; empty where there was no round",
    "mat_low": "lower end of its 95 % interval over prompts",
    "mat_high": "upper end",
    "floor_ms": "memory floor of the device's work in a round at an assumed bandwidth, in ms: not measured",
    "graph_bytes": "weights of the drafters' graphs",
    "table_bytes": "embedding tables on the CPU",
    "bytes_up": "bytes per round to the server, as planned for the wire",
    "bytes_down": "bytes per round from the server, the first window left out",
    "tokens_per_s": "tokens per second of the rounds on this host, models and tests of both sides in one process",
    "ratio": "MAT over that of the reference on the same prompts",
    "ratio_low": "lower end of its paired 95 % interval",
    "ratio_high": "upper end",
}
"""Columns behind a row's configuration and its varied keys, and what they mean."""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Sweep:
    """Settings with what they came to. `reference` is the place of the one that others are compared with."""

    settings: Sequence[Setting]
    measured: Sequence[Measured]
    reference: int | None
    seed: int

    @property
    def varied(self) -> list[str]:
        """The keys that some setting varies, in the grid's order."""
        return list(dict.fromkeys(key for setting in self.settings for key in setting.varied))

    def rows(self) -> list[Row]:
        """A row a setting: `config`, the varied keys (None where a configuration lacks one), COLUMNS."""
        reference = None if self.reference is None else self.measured[self.reference]
        rows = []
        for setting, measured in zip(self.settings, self.measured, strict=True):
            row: Row = {"config": setting.origin, **{key: setting.varied.get(key) for key in self.varied}}
            row |= _figures(measured, self.seed)
            if reference is not None:
                row |= _ratio(measured, reference, self.seed)
            rows.append(row)
        return rows


def paired_ratio(own: np.ndarray, other: np.ndarray, seed: int) -> tuple[float, float, float] | None:
    """Ratio of two MATs and its 95 % interval; `own` and `other` are int64 [2, prompts]: tokens, rounds.

    None where one of them has no round. Samples without one are left out.
    """
    if not (own[1].sum() and other[1].sum()):
        return None
    picks = np.random.default_rng(seed).integers(0, own.shape[1], (_RESAMPLES, own.shape[1]))
    sampled = [counts[:, picks].sum(-1) for counts in (own, other)]
    usable = (sampled[0][1] > 0) & (sampled[1][1] > 0)
    mats = [tokens[usable] / rounds[usable] for tokens, rounds in sampled]
    low, high = np.percentile(mats[0] / mats[1], [2.5, 97.5])
    value = (own[0].sum() / own[1].sum()) / (other[0].sum() / other[1].sum())
    return float(value), float(low), float(high)


def check_out(out: Path, force: bool) -> None:
    """Raises UsageError where `out` exists without `force`, or is no sweep's."""
    if not out.exists():
        return
    if not force:
        raise UsageError(f"--out {out} exists; name another, or replace it with --force: finished settings are kept")
    if not (out / RECORD_FILE).is_file():
        raise UsageError(f"--out {out} was not written by this command; --force replaces only that: name another --out")


def write_sweep(out: Path, sweep: Sweep, described: Mapping[str, Any]) -> list[Row]:
    """Write sweep.csv, sweep.png and sweep.json (with `described`) beside `out`, which they then replace; the rows."""
    rows = sweep.rows()
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_csv(partial / "sweep.csv", rows)
        draw_png(partial / "sweep.png", rows, sweep.varied)
        texts = [[asdict(text) for text in measured.texts] for measured in sweep.measured]
        record = {"schema_version": _SCHEMA_VERSION, **described, "columns": COLUMNS, "rows": rows, "texts": texts}
        (partial / RECORD_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return rows


def _figures(measured: Measured, seed: int) -> Row:
    decoded, rounds = _counts(measured)
    texts, cost, count = measured.texts, measured.cost, int(rounds.sum())
    low, high = bootstrap_interval(decoded, rounds, seed) if count else (None, None)
    return {
        "prompts": len(texts),
        "tokens": sum(text.tokens for text in texts),
        "rounds": count,
        "mat": float(decoded.sum() / count) if count else None,
        "mat_low": low,
        "mat_high": high,
        "floor_ms": cost.floor_ms,
        "graph_bytes": cost.graph_bytes,
        "table_bytes": cost.table_bytes,
        "bytes_up": sum(text.bytes_up for text in texts) / count if count else None,
        "bytes_down": sum(text.bytes_down for text in texts) / count if count else None,
        "tokens_per_s": float(decoded.sum()) / sum(text.seconds for text in texts) if count else None,
    }


def _ratio(measured: Measured, reference: Measured, seed: int) -> Row:
    found = paired_ratio(_counts(measured), _counts(reference), seed)
    return dict(zip(("ratio", "ratio_low", "ratio_high"), found or (None,) * 3, strict=True))


def _counts(measured: Measured) -> np.ndarray:
    """int64 [2, prompts]: tokens that rounds emitted, rounds."""
    return np.array([[text.decoded, text.rounds] for text in measured.texts], np.int64).T


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
