"""Where output goes: results to stdout, everything meant for a reader of the screen to stderr when --json is given.

This module does not know any command. It promises one thing: with `--json` the last line of stdout is exactly one JSON
object, also when a native library (ONNX Runtime, QNN) prints to file descriptor 1 while it works or while it unloads.
"""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

JsonOption = Annotated[
    bool, typer.Option("--json", help="Write the result as one JSON object, the last line of stdout.")
]
"""The `--json` every command takes; name the parameter `as_json`."""

_json_stream: ContextVar[TextIO | None] = ContextVar("json_stream", default=None)


@contextmanager
def json_only_stdout() -> Iterator[None]:
    """Keep stdout for the JSON line: whatever else is printed inside, by Python or by native code, goes to stderr.

    In a real process descriptor 1 stays on stderr afterwards, because QNN's libraries may still print at exit.
    Where sys.stdout has been replaced (tests, notebooks) only Python's stream is redirected, and restored.
    """
    process_stdout = sys.__stdout__
    if process_stdout is None or sys.stdout is not process_stdout:
        token = _json_stream.set(sys.stdout)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _json_stream.reset(token)
        return
    process_stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    token = _json_stream.set(stream)
    try:
        yield
    finally:
        _json_stream.reset(token)
        stream.close()


def emit(result: Mapping[str, object], as_json: bool, render: Callable[[Console], None]) -> None:
    """Hand over a command's result: one JSON line with `as_json`, else what `render` prints on a stdout console."""
    if as_json:
        write_json(result)
    else:
        from rich.console import Console

        render(Console())


def write_json(result: Mapping[str, object]) -> None:
    """Write `result` as one line of JSON; numbers that JSON does not have (NaN, infinities) become null."""
    line = json.dumps(_jsonable(result), ensure_ascii=False, allow_nan=False)
    stream = _json_stream.get() or sys.stdout
    stream.write(line + "\n")
    stream.flush()


def stderr_console() -> Console:
    """A console for progress and remarks, which must never mix with a result on stdout."""
    from rich.console import Console

    return Console(stderr=True)


def flatten(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of nested mappings as ("outer.inner", value) rows, in order."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def format_value(value: object) -> str:
    """A table cell: floats with four significant digits, everything else as Python prints it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _jsonable(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    # NumPy and torch scalars come as Python numbers through item(); anything else json.dumps refuses by itself.
    item = getattr(value, "item", None)
    return _jsonable(item()) if callable(item) else value
