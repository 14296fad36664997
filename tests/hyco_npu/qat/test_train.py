"""What trains, what does not, and that a step is what its parts add up to."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from hyco_npu.qat.options import Recipe
from hyco_npu.qat.processes import Processes
from hyco_npu.qat.train import Lesson, Trainer, draw, schedule
from quant.weights import DEFAULT_RATIOS

from .test_chain import centroid_head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hyco_npu.qat.chain import Trunk
    from hyco_npu.qat.data import Recorded, RowBuilder

RECIPE = Recipe(steps=6, sequences=4, rows=5, learning_rate=0.01)


def trainer_of(
    trunk: Trunk, texts: list[Recorded], builder: RowBuilder, recipe: Recipe = RECIPE, micro_batch: int = 0
) -> Trainer:
    return Trainer(Lesson(trunk, texts, builder), recipe, Processes.join("cpu"), micro_batch, bf16=False)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode() + tensors[name].detach().numpy().tobytes())
    return sha.hexdigest()


def test_only_linear_weights_train(trunk: Trunk, texts: list[Recorded], builder: RowBuilder) -> None:
    frozen, teacher = digest(trunk.frozen()), digest(trunk.weights)
    assert {tensor.ndim for tensor in trunk.frozen().values()} == {1}
    trainer = trainer_of(trunk, texts, builder)
    before = {name: weight.detach().clone() for name, weight in trainer.student.weights.items()}
    scales = digest(trainer.student.scales)
    for _ in range(3):
        trainer.run_step()
    assert (digest(trunk.frozen()), digest(trunk.weights), digest(trainer.student.scales)) == (frozen, teacher, scales)
    # 4 layers of 5 linears, two projections, the output layer
    assert len(before) == 4 * 5 + 3
    assert all(not torch.equal(before[name], weight) for name, weight in trainer.student.weights.items())


def test_training_lowers_the_loss(trunk: Trunk, texts: list[Recorded], builder: RowBuilder) -> None:
    trainer = trainer_of(trunk, texts, builder, replace(RECIPE, steps=30, rows=50))
    losses = [trainer.run_step().loss for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]


def test_the_optimiser_is_the_papers(trunk: Trunk, texts: list[Recorded], builder: RowBuilder) -> None:
    trainer = trainer_of(trunk, texts, builder)
    (group,) = trainer._optimizer.param_groups
    assert isinstance(trainer._optimizer, torch.optim.AdamW)
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.95), 0.0)
    assert (DEFAULT_RATIOS[0], DEFAULT_RATIOS[-1]) == (1.0, 0.6)


def test_a_step_is_adamw_on_the_clipped_gradient(trunk: Trunk, texts: list[Recorded], builder: RowBuilder) -> None:
    """Against torch's AdamW on the plain sum of per-row KL through torch's own softmax and autograd."""
    trainer = trainer_of(trunk, texts, builder)
    parameters = {name: torch.nn.Parameter(weight.detach().clone()) for name, weight in trainer.student.weights.items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.01 * schedule(0, 6), betas=(0.9, 0.95), weight_decay=0.0)
    drawn = draw(texts, RECIPE, 0)
    batch = builder.batch([texts[i] for i, _ in drawn], [rows for _, rows in drawn])
    rounded = {}
    for name, weight in parameters.items():
        scale = trainer.student.scales[name]
        codes = (weight.detach() / scale).round()
        inside = (codes >= -8) & (codes <= 7)
        straight = weight * inside
        rounded[name] = straight + (codes.clamp(-8, 7) * scale - straight).detach()
    total = torch.zeros(())
    pairs = zip(trunk.forced(rounded, batch), trunk.forced(trunk.weights, batch), batch.counted, strict=True)
    for student, teacher, counted in pairs:
        log_student = (student[counted] @ rounded["lm_head.weight"].T).log_softmax(-1)
        log_teacher = (teacher[counted] @ trunk.weights["lm_head.weight"].T).log_softmax(-1)
        total = total + torch.nn.functional.kl_div(log_student, log_teacher, reduction="sum", log_target=True)
    (total / batch.count).backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
    optimizer.step()
    done = trainer.run_step()
    assert done.loss == pytest.approx(total.item() / batch.count, rel=1e-4)
    assert done.gradient_norm == pytest.approx(float(norm), rel=1e-3)
    for name, weight in trainer.student.weights.items():
        gradient = parameters[name].grad
        assert gradient is not None
        telling = gradient.abs() > 1e-5  # Adam's first step is lr * sign(g): noise where g is noise
        torch.testing.assert_close(weight.detach()[telling], parameters[name].detach()[telling], rtol=0, atol=1e-5)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_accumulated_gradients_are_the_big_batchs(
    trunk: Trunk, texts: list[Recorded], builder: RowBuilder, micro_batch: int
) -> None:
    drawn = draw(texts, RECIPE, 0)
    whole, parts = trainer_of(trunk, texts, builder), trainer_of(trunk, texts, builder, micro_batch=micro_batch)
    loss, gradients = whole.gradients(whole.student.rounded(), drawn)
    loss_of_parts, gradients_of_parts = parts.gradients(parts.student.rounded(), drawn)
    assert loss_of_parts == pytest.approx(loss, abs=1e-6)
    for big, accumulated in zip(gradients, gradients_of_parts, strict=True):
        torch.testing.assert_close(accumulated, big, rtol=0, atol=1e-6)


def test_codes_are_rounded_weights_and_the_forward_is_the_same(
    trunk: Trunk, texts: list[Recorded], builder: RowBuilder
) -> None:
    trainer = trainer_of(trunk, texts, builder)
    for _ in range(3):
        trainer.run_step()
    codes = trainer.student.codes()
    for name, weight in trainer.student.weights.items():
        wanted = (weight.detach() / codes[name].scale).round().clamp(-8, 7)
        assert torch.equal(codes[name].codes.float(), wanted)
    batch = builder.batch(texts[:2], [text.rows for text in texts[:2]])
    converted = {name: weight.dequantize() for name, weight in codes.items()}
    with torch.no_grad():
        for before, after in zip(
            trunk.forced(trainer.student.rounded(), batch), trunk.forced(converted, batch), strict=True
        ):
            assert torch.equal(before, after)


def test_bf16_arithmetic_is_close_to_fp32(trunk: Trunk, texts: list[Recorded], builder: RowBuilder) -> None:
    lesson, processes = Lesson(trunk, texts, builder), Processes.join("cpu")
    bf16, fp32 = (Trainer(lesson, RECIPE, processes, 0, bf16=wanted) for wanted in (True, False))
    losses = bf16.run_step().loss, fp32.run_step().loss
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert losses[0] != losses[1]
    assert all(weight.dtype == torch.float32 for weight in bf16.student.weights.values())


def test_every_text_comes_once_before_any_comes_again(texts: list[Recorded]) -> None:
    recipe = replace(RECIPE, sequences=2, rows=3)
    drawn = [entry for step in range(4) for entry in draw(texts, recipe, step)]
    assert Counter(index for index, _ in drawn) == dict.fromkeys(range(4), 2)
    for index, rows in drawn:
        assert sorted(set(rows.tolist())) == rows.tolist()
        assert set(rows.tolist()) <= set(texts[index].rows.tolist())
        assert len(rows) == min(3, len(texts[index].rows))
    assert [rows.tolist() for _, rows in draw(texts, recipe, 1)] == [rows.tolist() for _, rows in drawn[2:4]]
    assert [i for i, _ in draw(texts, replace(recipe, seed=1), 0)] + [0] != [i for i, _ in drawn[:2]]


def test_schedule() -> None:
    assert schedule(0, 100) == pytest.approx(0.2)  # the rise takes 5 of 100 steps
    assert schedule(50, 100) == pytest.approx(0.5)
    assert 0 < schedule(99, 100) < 0.001
    assert schedule(0, 1) == 1.0


def test_a_centroid_head_trains_over_the_full_vocabulary(
    tmp_path: Path, texts: list[Recorded], builder: RowBuilder
) -> None:
    _, trunk = centroid_head(tmp_path)
    trainer = trainer_of(trunk, texts, builder, replace(RECIPE, rows=50))
    drawn = draw(texts, trainer.recipe, 0)
    names = list(trainer.student.weights)
    _, gradients = trainer.gradients(trainer.student.rounded(), drawn)
    # the dense student gives every token some probability: all rows of the output layer get a gradient
    assert gradients[names.index("lm_head.weight")].abs().sum(1).min() > 0
    losses = [trainer.run_step().loss for _ in range(6)]
    assert all(0 < loss < 100 for loss in losses)
    assert losses[-1] < losses[0]
