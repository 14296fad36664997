"""What an SLM's export was asked for and what it made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.engines.htp import TARGETS
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from export.slm.weights import TwoBit

PAPER_GRAPH_BYTES = 754_000_000
"""The paper's NPU graph of E2B."""
_OUTLIER_ROWS = 17
_MAX_ROWS = 1024


@dataclass(frozen=True)
class SlmExportOptions:
    """Options of `hyco-npu export slm`.

    checkpoint: a folder or a Hugging Face id. verifier: whose answers are calibrated on and counted, None for prompts
    alone. keep_set: a file, a number, or None for the default size. calibration: a file of ranges or of prompts, the
    word "synthetic", or None for the default prompts. rows, prefill_rows: rows of the two graphs. two_bit, head_bits:
    how 2-bit codes and the output layer's codes are stored.
    """

    checkpoint: str
    verifier: str | None
    out: Path
    default_prompts: Path
    held_out_prompts: Path
    rows: int = 32
    prefill_rows: int = 128
    two_bit: TwoBit = "native"
    head_bits: int | None = None
    activation_clip: bool = True
    keep_set: str | None = None
    window: int = 1024
    target: str = "sm8850"
    calibration: str | None = None
    table: bool = True
    force: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for option, rows in (("--rows", self.rows), ("--prefill-rows", self.prefill_rows)):
            if rows == _OUTLIER_ROWS:
                raise UsageError(
                    f"{option} {rows} is refused: the compiler's estimate for {rows} rows is 30% above that for 33; "
                    "unused rows are padded, so take 32"
                )
            if not 1 <= rows <= _MAX_ROWS:
                raise UsageError(f"{option} {rows} must lie in 1..{_MAX_ROWS}")
        if self.two_bit not in ("int4", "native", "nbits"):
            raise UsageError(f"--two-bit {self.two_bit!r} is unknown; use native, int4 or nbits")
        if self.head_bits not in (None, 2, 4, 8):
            raise UsageError(f"--head-bits {self.head_bits} is not supported; use 2, 4 or 8")
        if self.target not in TARGETS:
            raise UsageError(f"--target {self.target!r} is unknown; use one of {sorted(TARGETS)}")
        if not self.rows <= self.window <= 32768:
            raise UsageError(f"--window {self.window} must lie in {self.rows} (--rows) .. 32768")


@dataclass(frozen=True)
class SlmExportResult:
    """The figures of a finished export; byte counts are of files or of codes with scales as the graphs store them.

    `peak_rss_bytes` is the larger of this process and the compiler's; `compile_s` is of both graphs into one binary.
    """

    bundle: str
    target: str
    rows: int
    prefill_rows: int
    window: int
    two_bit: str
    head_bits: int
    activation_clip: bool
    keep_set_size: int
    keep_set_source: str
    keep_set_sha256: str
    calibration: str
    graph_bytes: int | None
    draft_alone_bytes: int | None
    prefill_alone_bytes: int | None
    weight_bytes: int
    weight_bytes_by_kind: dict[str, int]
    paper_graph_bytes: int
    qdq_bytes: int
    lut_bytes: int
    per_layer_lut_bytes: int
    compile_s: float | None
    draft_compile_s: float | None
    prefill_compile_s: float | None
    peak_rss_bytes: int
    nodes_on_npu: int | None
    nodes_off_npu: int | None
    qnn_version: str | None
    parity_max_abs_error: float
    parity_top1_with_rounding: float
    measured_on_device: str
    warnings: list[str]
