"""What a calibration was asked for: prompts, how ranges are chosen, and which share of the work is done here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calibration.range_methods import RangeMethod
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Shard:
    """Part `number` (from 1) of `count`: every count-th prompt.

    Raises UsageError for a part that does not exist.
    """

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UsageError(f"--shard {self}: the first number must lie in 1..{self.count}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """ "2/4" -> the second of four. Raises UsageError."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None:
            raise UsageError(f"--shard {text!r} is no part; write 2/4 for the second of four")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def indices(self, prompts: int) -> range:
        """The numbers of its prompts, of `prompts` in all."""
        return range(self.number - 1, prompts, self.count)

    def split(self, parts: int) -> list[Shard]:
        """Disjoint shards that together are this one."""
        return [Shard(self.number + part * self.count, self.count * parts) for part in range(parts)]


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of `hyco-npu calibrate`; those that shape the graph are the export's own.

    Raises UsageError for fewer than one job, and for a shard without a file of the keep set.
    """

    prompts: Path
    keep_set: str | None = None
    method: RangeMethod = field(default_factory=RangeMethod)
    shard: Shard = field(default_factory=Shard)
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError(f"--jobs {self.jobs} must be at least 1")
        if self.shard.count > 1 and (self.keep_set is None or self.keep_set.isdecimal()):
            raise UsageError(
                f"--shard {self.shard} needs --keep-set FILE: a set that is counted from some of the prompts would "
                "differ between shards; make one with hyco-npu keepset build"
            )
