"""The training loop: AdamW on the linear layers' float weights, rounded once a step by the function that export uses.

A step is decided by its number and the seed alone, so a run resumes bit for bit. Rounded weights are leaves of their
own: the backward passes of all chain steps and micro-batches add up on them, and go through the rounding once.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from export.mtp.chain import CHAIN_LENGTH
from hyco_npu.qat.chain import OUTPUT_LAYER
from hyco_npu.qat.loss import output_kl
from quant.affine import quantize
from quant.fake import fake_quantize_weight
from quant.weights import QuantizedWeight, search_clip, symmetric_params

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hyco_npu.qat.chain import Trunk, Weights
    from hyco_npu.qat.data import Recorded, RowBatch, RowBuilder
    from hyco_npu.qat.options import Recipe
    from hyco_npu.qat.processes import Processes
    from quant.dtypes import IntegerType

_BETAS = (0.9, 0.95)
_GRADIENT_NORM = 1.0
_WARMUP_SHARE = 0.05
Drawn = tuple[int, torch.Tensor]
"""A text's index and the rows drawn from it, ascending."""


class Student:
    """The weights in training and the fixed scale of every output channel, found by the clip search at the start."""

    def __init__(self, start: Weights, dtype: IntegerType) -> None:
        self.dtype = dtype
        self.weights = {name: nn.Parameter(weight.clone()) for name, weight in start.items()}
        self.scales = {name: search_clip(weight, dtype) for name, weight in start.items()}

    def rounded(self) -> Weights:
        """Every weight as it will be after export, in float32, differentiable by the float weight."""
        return {name: fake_quantize_weight(w, self.scales[name], self.dtype) for name, w in self.weights.items()}

    def load(self, weights: Weights) -> None:
        """Take over the float weights of another moment of the training."""
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(weights[name])

    def codes(self) -> dict[str, QuantizedWeight]:
        """round(w / s) of every weight with its scale, on the CPU."""
        return {name: self._codes(weight.detach(), self.scales[name]) for name, weight in self.weights.items()}

    def _codes(self, weight: torch.Tensor, scale: torch.Tensor) -> QuantizedWeight:
        codes = quantize(weight, symmetric_params(scale, self.dtype)).to(torch.int8)
        return QuantizedWeight(codes.cpu(), scale.cpu(), self.dtype)


@dataclass(frozen=True)
class StepResult:
    """Mean KL in nats per prediction, the gradient's norm before clipping, and the learning rate of one step."""

    loss: float
    gradient_norm: float
    learning_rate: float


@dataclass(frozen=True)
class Lesson:
    """What is learned from: recorded texts with at least one row each, and the head that is the teacher."""

    trunk: Trunk
    texts: Sequence[Recorded]
    builder: RowBuilder


class Trainer:
    """Student, optimiser and the number of finished steps."""

    def __init__(self, lesson: Lesson, recipe: Recipe, processes: Processes, micro_batch: int, bf16: bool) -> None:
        self.lesson, self.recipe, self._processes = lesson, recipe, processes
        self._micro_batch = micro_batch or math.ceil(recipe.sequences / processes.count)
        self._bf16 = bf16
        self.student = Student(lesson.trunk.weights, recipe.dtype)
        self._optimizer = torch.optim.AdamW(
            self.student.weights.values(), lr=recipe.learning_rate, betas=_BETAS, weight_decay=0.0, fused=True
        )
        self._teacher: dict[int, torch.Tensor] = {}
        self.step = 0

    def run_step(self) -> StepResult:
        """Train one step on all processes' micro-batches together."""
        drawn = draw(self.lesson.texts, self.recipe, self.step)
        rounded = self.student.rounded()
        loss, gradients = self.gradients(rounded, drawn)
        torch.autograd.backward(list(rounded.values()), gradients)
        norm = nn.utils.clip_grad_norm_(self.student.weights.values(), _GRADIENT_NORM)
        rate = self.recipe.learning_rate * schedule(self.step, self.recipe.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return StepResult(loss, float(norm), rate)

    def gradients(self, rounded: Weights, drawn: Sequence[Drawn]) -> tuple[float, list[torch.Tensor]]:
        """Mean KL over everything `drawn` and its float32 gradients by the `rounded` weights, over all processes."""
        leaves = {name: weight.detach().requires_grad_() for name, weight in rounded.items()}
        parts = [drawn[i : i + self._micro_batch] for i in range(0, len(drawn), self._micro_batch)]
        count = sum(self._count(index, rows) for index, rows in drawn)
        zero = torch.zeros((), dtype=torch.float64, device=self._processes.device)
        sums = [zero, *(zero.expand_as(weight) for weight in leaves.values())]
        for part in self._processes.share(parts):
            loss = self._loss(leaves, part) / count
            made = loss.detach(), *torch.autograd.grad(loss, list(leaves.values()))
            sums = [total + addend for total, addend in zip(sums, made, strict=True)]
        total_loss, *totals = self._processes.sum(sums)
        return float(total_loss), [total.float() for total in totals]

    def _loss(self, weights: Weights, part: Sequence[Drawn]) -> torch.Tensor:
        """Summed KL of one micro-batch."""
        trunk = self.lesson.trunk
        batch = self.batch(part)
        with torch.autocast(self._processes.device.type, torch.bfloat16, enabled=self._bf16):
            student = torch.cat([last[c] for last, c in zip(trunk.forced(weights, batch), batch.counted, strict=True)])
            wanted = self.wanted(part, batch)
            return output_kl(student, weights[OUTPUT_LAYER], (wanted, trunk.weights[OUTPUT_LAYER], trunk.centroids))

    def wanted(self, part: Sequence[Drawn], batch: RowBatch) -> torch.Tensor:
        """The teacher's inputs of the output layer for the predictions that count, in the student's order."""
        starts = [self.lesson.texts[index].prompt_length for index, _ in part]
        rows = [
            self.teacher_rows(index)[:, positions - start]
            for (index, _), positions, start in zip(part, batch.positions, starts, strict=True)
        ]
        return torch.stack(rows, 1)[batch.counted]

    def teacher_rows(self, index: int) -> torch.Tensor:
        """[K, rows, hidden] of all rows of a text: the teacher never changes, so it runs once over each."""
        if index not in self._teacher:
            trunk, text = self.lesson.trunk, self.lesson.texts[index]
            batch = self.lesson.builder.batch([text], [text.rows]).to(self._processes.device)
            with torch.no_grad():
                self._teacher[index] = torch.stack([last[0] for last in trunk.forced(trunk.weights, batch)])
        return self._teacher[index]

    def batch(self, part: Sequence[Drawn]) -> RowBatch:
        """The inputs of what was drawn, on this process's device."""
        texts = [self.lesson.texts[index] for index, _ in part]
        return self.lesson.builder.batch(texts, [rows for _, rows in part]).to(self._processes.device)

    def _count(self, index: int, rows: torch.Tensor) -> int:
        return int(sum((rows + step < len(self.lesson.texts[index].ids)).sum() for step in range(1, CHAIN_LENGTH + 1)))

    def save(self, path: Path, extra: dict[str, Any]) -> None:
        """Write everything that the next step depends on, and `extra`, to `path`: whole or not at all."""
        state = {
            "step": self.step,
            "weights": {name: weight.detach() for name, weight in self.student.weights.items()},
            "optimizer": self._optimizer.state_dict(),
            "extra": extra,
        }
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        os.replace(temporary, path)

    def load(self, path: Path) -> dict[str, Any]:
        """Go on from `path`; returns the `extra` saved there."""
        state = torch.load(path, weights_only=True, map_location=self._processes.device)
        self.student.load(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        extra: dict[str, Any] = state["extra"]
        return extra


def draw(texts: Sequence[Recorded], recipe: Recipe, step: int) -> list[Drawn]:
    """(text, its rows in order) of one batch: every text once before any comes again, rows at random."""
    drawn = []
    for place in range(step * recipe.sequences, (step + 1) * recipe.sequences):
        epoch, position = divmod(place, len(texts))
        index = int(np.random.default_rng([recipe.seed, 0, epoch]).permutation(len(texts))[position])
        rows = texts[index].rows.numpy()
        picked = np.random.default_rng([recipe.seed, 1, place]).permutation(rows)[: recipe.rows]
        drawn.append((index, torch.from_numpy(np.sort(picked))))
    return drawn


def schedule(step: int, steps: int) -> float:
    """Share of the learning rate: a linear rise over the first steps, then half a cosine towards 0."""
    rise = min(1.0, (step + 1) / max(1.0, _WARMUP_SHARE * steps))
    return rise * 0.5 * (1 + math.cos(math.pi * step / steps))
