"""What an export refuses before it reads anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.slm.options import SlmExportOptions
from quant.errors import UsageError


def options(**changes: Any) -> SlmExportOptions:
    defaults = {
        "checkpoint": "slm", "verifier": None, "out": Path("out"),
        "default_prompts": Path("a.jsonl"), "held_out_prompts": Path("b.jsonl"),
    }  # fmt: skip
    return SlmExportOptions(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 17}, r"--rows 17 is refused: .* 17 rows is 30% above that for 33; .* padded, so take 32"),
        ({"prefill_rows": 17}, "--prefill-rows 17 is refused: the compiler's estimate"),
        ({"rows": 0}, r"--rows 0 must lie in 1\.\.1024"),
        ({"prefill_rows": 0}, r"--prefill-rows 0 must lie in 1\.\.1024"),
        ({"rows": 1025, "window": 2048}, "--rows 1025 must lie"),
        ({"prefill_rows": 1025}, "--prefill-rows 1025 must lie"),
        ({"rows": -1}, "--rows -1 must lie"),
        ({"two_bit": "int2"}, "--two-bit 'int2' is unknown; use native, int4 or nbits"),
        ({"head_bits": 3}, "--head-bits 3 is not supported; use 2, 4 or 8"),
        ({"head_bits": 16}, "--head-bits 16 is not supported"),
        ({"target": "sm9999"}, r"--target 'sm9999' is unknown; use one of \['sm8650', 'sm8750', 'sm8850'\]"),
        ({"window": 31}, r"--window 31 must lie in 32 \(--rows\) \.\. 32768"),
        ({"window": 32769}, "--window 32769 must lie"),
    ],
)
def test_wrong_use(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        options(**changes)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("changes", [{"rows": 16}, {"rows": 18}, {"rows": 1024}, {"window": 32}, {"head_bits": 8}])
def test_neighbours_of_what_is_refused(changes: dict[str, Any]) -> None:
    options(**changes)


def test_defaults() -> None:
    made = options()
    assert (made.rows, made.prefill_rows, made.window, made.target) == (32, 128, 1024, "sm8850")
    assert (made.two_bit, made.head_bits, made.activation_clip, made.table) == ("native", None, True, True)
