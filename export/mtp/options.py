"""What an export was asked for and what it made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.engines.htp import TARGETS
from export.mtp.quantized_graph import KV_TYPES, WEIGHT_TYPES
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from export.graphs.feeds import PositionRule

MAX_ROWS_SAMPLED = 8


@dataclass(frozen=True)
class MtpExportOptions:
    """Options of `hyco-npu export mtp`.

    checkpoint and verifier: a folder or a Hugging Face id. keep_set: a file, a number, or None for the default size.
    calibration: a file of ranges or of prompts, the word "synthetic", or None for the default prompts.
    """

    checkpoint: str
    verifier: str | None
    out: Path
    default_prompts: Path
    held_out_prompts: Path
    bits: int = 4
    kv_bits: int = 16
    keep_set: str | None = None
    window: int = 1024
    target: str = "sm8850"
    calibration: str | None = None
    position_rule: PositionRule = "p"
    table: bool = True
    force: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in WEIGHT_TYPES:
            raise UsageError(f"--bits {self.bits} is not supported; use one of {sorted(WEIGHT_TYPES)}")
        if self.kv_bits not in KV_TYPES:
            raise UsageError(f"--kv-bits {self.kv_bits} is not supported; use one of {sorted(KV_TYPES)}")
        if self.target not in TARGETS:
            raise UsageError(f"--target {self.target!r} is unknown; use one of {sorted(TARGETS)}")
        if not 1 <= self.window <= 32768:
            raise UsageError(f"--window {self.window} must lie in 1..32768")
        if self.position_rule not in ("p", "p-1"):
            raise UsageError(f"--position {self.position_rule!r} is unknown; use p or p-1")
        if self.verifier is None and self.table:
            raise UsageError("this head needs --verifier DIR for its embedding table, or --no-table to do without")


@dataclass(frozen=True)
class MtpExportResult:
    """The figures of a finished export; byte counts are file sizes, `peak_rss_bytes` the larger of both processes."""

    bundle: str
    target: str
    bits: int
    kv_bits: int
    window: int
    keep_set_size: int
    keep_set_source: str
    calibration: str
    graph_bytes: int | None
    qdq_bytes: int
    lut_bytes: int
    compile_s: float | None
    peak_rss_bytes: int
    nodes_on_npu: int | None
    nodes_off_npu: int | None
    qnn_version: str | None
    parity_max_abs_error: float
    measured_on_device: str
    warnings: list[str]
