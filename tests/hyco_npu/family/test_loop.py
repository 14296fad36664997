"""A broken training run goes on to the same weights, bit for bit."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from hyco_npu.family import loop
from hyco_npu.family.loop import StageOptions, train_stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _InterruptedError(Exception):
    pass


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def _loss(model: nn.Module, break_at: int | None = None) -> Callable[[int], dict[str, torch.Tensor]]:
    def loss(step: int) -> dict[str, torch.Tensor]:
        if step == break_at:
            raise _InterruptedError
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        return {"loss": (model(x) - x[:, :3]).square().mean(), "twice": 2 * torch.tensor(float(step))}

    return loss


def test_resumed_run_equals_unbroken_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_CHECKPOINT_EVERY", 3)
    whole, broken, resumed = _model(), _model(), _model()
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    train_stage(whole, _loss(whole), StageOptions("s", 6, 0.05, 0.1, tmp_path / "whole"))

    options = StageOptions("s", 6, 0.05, 0.1, tmp_path / "broken")
    with pytest.raises(_InterruptedError):
        train_stage(broken, _loss(broken, break_at=4), options)
    train_stage(resumed, _loss(resumed), options, validate=lambda: {})

    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
        assert not torch.equal(value, start[name]), name
    with (tmp_path / "broken" / "s.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [3, 6]


def test_finished_stage_is_not_trained_again(tmp_path: Path) -> None:
    model, again = _model(), _model()
    options = StageOptions("s", 4, 0.05, 0.1, tmp_path)
    train_stage(model, _loss(model), options)
    train_stage(again, _loss(again, break_at=0), options)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
