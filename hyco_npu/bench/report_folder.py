"""A report's folder: it appears whole or not at all.

result.json   rounds.csv   report.html   rounds.safetensors (where the rounds were recorded)   raw/*.jsonl, *.csv
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from calibration.jsonfile import replace_file
from hyco_npu.bench.report import write_csv, write_html
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hyco_npu.bench.result import BenchResult

ROUNDS_NAME, RAW_NAME = "rounds.safetensors", "raw"
_RESULT, _CSV, _HTML = "result.json", "rounds.csv", "report.html"
_NAMES = frozenset({ROUNDS_NAME, RAW_NAME, _RESULT, _CSV, _HTML})


@contextmanager
def report_folder(out: Path, *, force: bool) -> Iterator[Path]:
    """A folder to fill, with an empty raw/ in it; at the end of the block it is `out`.

    Raises UsageError where `out` exists without `force`, or is something else than an older report.
    """
    _require_free(out, force=force)
    partial = out.absolute().with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        (partial / RAW_NAME).mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written ({error.strerror}); choose another folder") from error
    try:
        yield partial
        _require_free(out, force=force)
        if out.exists():
            shutil.rmtree(out)
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_report(folder: Path, result: BenchResult) -> None:
    """Write a result's files into a report's folder."""
    text = json.dumps(result.to_json(), allow_nan=False, ensure_ascii=False, indent=2)
    replace_file(folder / _RESULT, f"{text}\n".encode())
    write_csv(result, folder / _CSV)
    write_html(result, folder / _HTML)


def _require_free(out: Path, *, force: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise UsageError(f"--out {out} exists; choose another folder, or replace the report in it with --force")
    if out.is_symlink() or not out.is_dir() or not (out / _RESULT).is_file():
        raise UsageError(f"--out {out} is no report, and --force replaces nothing else; choose another folder")
    foreign = sorted(path.name for path in out.iterdir() if path.name not in _NAMES)
    if foreign:
        raise UsageError(f"--out {out} holds {foreign[0]!r}, which no report has; move it away before using --force")
