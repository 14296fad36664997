"""What a training run was asked for; `Recipe` is the part that decides the weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quant.dtypes import INT2, INT4, INT8, IntegerType
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

INT3 = IntegerType("int3", 3, signed=True)
WEIGHT_TYPES = {2: INT2, 3: INT3, 4: INT4, 8: INT8}
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Recipe:
    """Steps, learning rate and batch; a batch is `sequences` answers with `rows` positions drawn from each."""

    steps: int = 100
    bits: int = 4
    learning_rate: float = 6e-4
    sequences: int = 64
    rows: int = 16
    window: int = 1024
    answer_tokens: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4):
            raise UsageError(f"--bits {self.bits} is not trained; use 4, 3 or 2 (8 bits lose nothing to train back)")
        for name in ("steps", "sequences", "rows", "window"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} {getattr(self, name)} has to be 1 or more")
        if self.answer_tokens < 2:
            raise UsageError(f"--answer-tokens {self.answer_tokens} has to be 2 or more: the first one is not drafted")
        if not 0 < self.learning_rate < 1:
            raise UsageError(f"--learning-rate {self.learning_rate} has to lie between 0 and 1")

    @property
    def dtype(self) -> IntegerType:
        """The integer type of the weights."""
        return WEIGHT_TYPES[self.bits]


@dataclass(frozen=True)
class QatOptions:
    """Options of `hyco-npu qat`.

    `micro_batch` sequences go through the head at once (0: the whole batch). `patience` validations without a better
    KL end the training (0: never). `work_dir` keeps the answers and the state from which `resume` goes on.
    """

    checkpoint: Path
    verifier: Path
    prompts: Path
    validation: Path
    out: Path
    work_dir: Path
    recipe: Recipe = field(default_factory=Recipe)
    micro_batch: int = 0
    patience: int = 0
    device: str = "auto"
    precision: str = "auto"
    resume: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise UsageError(f"--device {self.device!r} is unknown; use one of {', '.join(DEVICES)}")
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision {self.precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
        for name in ("micro_batch", "patience"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)} has to be 0 or more")
