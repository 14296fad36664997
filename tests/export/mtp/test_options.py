"""What an export refuses before it reads anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.mtp.options import MtpExportOptions
from quant.errors import UsageError


def options(**changes: Any) -> MtpExportOptions:
    defaults = {
        "checkpoint": "head", "verifier": "verifier", "out": Path("out"),
        "default_prompts": Path("a.jsonl"), "held_out_prompts": Path("b.jsonl"),
    }  # fmt: skip
    return MtpExportOptions(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 2}, r"--bits 2 is not supported; use one of \[4, 8\]"),
        ({"bits": 16}, "--bits 16"),
        ({"kv_bits": 4}, r"--kv-bits 4 is not supported; use one of \[8, 16\]"),
        ({"target": "sm9999"}, r"--target 'sm9999' is unknown; use one of \['sm8650', 'sm8750', 'sm8850'\]"),
        ({"window": 0}, r"--window 0 must lie in 1\.\.32768"),
        ({"window": 32769}, "--window 32769"),
        ({"position_rule": "p+1"}, r"--position 'p\+1' is unknown; use p or p-1"),
        ({"verifier": None}, "needs --verifier DIR for its embedding table, or --no-table"),
    ],
)
def test_wrong_use(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        options(**changes)
    assert caught.value.exit_code == 2


def test_defaults_are_the_papers() -> None:
    made = options()
    assert (made.bits, made.window, made.target, made.position_rule, made.keep_set) == (4, 1024, "sm8850", "p", None)
    assert made.kv_bits == 16
    assert options(verifier=None, table=False).verifier is None
