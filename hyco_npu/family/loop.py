"""The training loop of every stage: Muon for matrices, AdamW for the rest, cosine schedule, exact resume."""

from __future__ import annotations

import csv
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_CHECKPOINT_EVERY = 50
_WARMUP_STEPS = 30
_SMOOTHING = 0.97
_NOT_FOR_MUON = ("embed", "lm_head", "router")


@dataclass(frozen=True)
class StageOptions:
    """How long and how fast one stage trains; `work_dir` keeps its checkpoint and its curve."""

    name: str
    steps: int
    learning_rate: float
    weight_decay: float
    work_dir: Path


def train_stage(
    model: nn.Module,
    loss_of_step: Callable[[int], Mapping[str, torch.Tensor]],
    options: StageOptions,
    validate: Callable[[], dict[str, float]] | None = None,
) -> None:
    """Train `model` in place; `loss_of_step(i)` must depend on `i` alone, which makes resuming exact.

    `loss_of_step` returns named scalars; "loss" is the one that is minimised, the rest are written to the curve.
    """
    options.work_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = options.work_dir / f"{options.name}.pt"
    optimizers = _optimizers(model, options)
    start = _resume(checkpoint, model, optimizers)
    curve = _Curve(options.work_dir / f"{options.name}.csv", start)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress:
        task = progress.add_task(options.name, total=options.steps, completed=start)
        for step in range(start, options.steps):
            scalars = loss_of_step(step)
            scalars["loss"].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = options.learning_rate * _schedule(step, options.steps)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            last = step + 1 == options.steps
            if (step + 1) % _CHECKPOINT_EVERY == 0 or last:
                extra = validate() if validate else {}
                curve.write(step + 1, {k: v.item() for k, v in scalars.items()}, extra)
                _save(checkpoint, step + 1, model, optimizers)
            else:
                curve.add({k: v.item() for k, v in scalars.items()})
            progress.update(task, advance=1, description=f"{options.name} loss {curve.smooth['loss']:.3f}")


def _optimizers(model: nn.Module, options: StageOptions) -> list[torch.optim.Optimizer]:
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and not any(part in name for part in _NOT_FOR_MUON)
        (matrices if is_matrix else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices,
            lr=options.learning_rate,
            weight_decay=options.weight_decay,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(others, lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def _schedule(step: int, steps: int) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (0.02 + 0.98 * cosine)


def _save(path: Path, step: int, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def _resume(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


class _Curve:
    """Exponentially smoothed scalars, appended to a CSV at every checkpoint."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.smooth: dict[str, float] = {}
        self._began = time.monotonic()
        if start == 0:
            path.unlink(missing_ok=True)

    def add(self, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            old = self.smooth.get(name, value)
            self.smooth[name] = _SMOOTHING * old + (1 - _SMOOTHING) * value

    def write(self, step: int, scalars: Mapping[str, float], extra: Mapping[str, float]) -> None:
        self.add(scalars)
        row: dict[str, float] = {"step": step, "elapsed_s": time.monotonic() - self._began, **self.smooth, **extra}
        is_new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(row))
            if is_new:
                writer.writeheader()
            writer.writerow({name: round(value, 5) for name, value in row.items()})
