"""This process among those that torchrun started: accelerate finds them, the device and the backend.

Sums run in float64: they are then the same to the last float32 bit however the addends are spread over processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import reduce

from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """`index` of `count` processes, this one's `device`; `state` is accelerate's."""

    index: int
    count: int
    device: torch.device
    state: PartialState

    @classmethod
    def join(cls, device: str) -> Processes:
        """Join the group that torchrun's environment describes, or be alone. `device` is auto, cpu or cuda.

        Raises UsageError where CUDA is asked for and absent.
        """
        if device == "cuda" and not torch.cuda.is_available():
            raise UsageError("--device cuda: this machine has no CUDA device that torch can use; take cpu or auto")
        state = PartialState(cpu=device == "cpu")
        return cls(state.process_index, state.num_processes, state.device, state)

    @property
    def is_main(self) -> bool:
        """Whether this process writes and reports."""
        return self.index == 0

    def share(self, everything: Sequence[T]) -> Sequence[T]:
        """This process's part of work that all of them see in the same order."""
        return everything[self.index :: self.count]

    def sum(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The float64 sum of each tensor over all processes, in its own shape."""
        wide = [tensor.to(torch.float64) for tensor in tensors]
        if self.count == 1:
            return wide
        joined: torch.Tensor = reduce(torch.cat([tensor.flatten() for tensor in wide]), reduction="sum")
        parts = joined.split([tensor.numel() for tensor in wide])
        return [part.view_as(tensor) for part, tensor in zip(parts, wide, strict=True)]
