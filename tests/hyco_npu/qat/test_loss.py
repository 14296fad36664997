"""The fused loss against autograd and torch's own KL, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hyco_npu.qat.chain import Centroids, output_logits
from hyco_npu.qat.loss import output_kl, row_blocks

ROWS, WIDTH, VOCABULARY = 150, 12, 40


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (ROWS, WIDTH), (VOCABULARY, WIDTH), (ROWS, WIDTH), (VOCABULARY, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def centroids(dtype: torch.dtype = torch.float32) -> Centroids:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(8, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return Centroids(rows, torch.randperm(VOCABULARY, generator=generator).view(8, 5), 3)


@pytest.mark.parametrize("selecting", [False, True])
def test_value_and_gradients_are_autograds(selecting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyco_npu.qat.loss._BLOCK_ELEMENTS", 1)  # blocks of 64 rows: 64, 64 and 22
    x, weight, hidden, table = (tensor.requires_grad_() for tensor in inputs())
    loss = output_kl(x, weight, (hidden.detach(), table.detach(), centroids() if selecting else None))
    made = torch.autograd.grad(3 * loss, [x, weight])
    x64, weight64, hidden64, table64 = (tensor.requires_grad_() for tensor in inputs(torch.float64))
    with torch.no_grad():
        wanted = output_logits(hidden64, table64, centroids(torch.float64) if selecting else None).softmax(-1)
    reference = F.kl_div(F.linear(x64, weight64).log_softmax(-1), wanted, reduction="sum")
    expected = torch.autograd.grad(3 * reference, [x64, weight64])
    torch.testing.assert_close(loss.double(), reference, rtol=1e-5, atol=0)
    for found, right in zip(made, expected, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)
    if selecting:
        assert (wanted == 0).any()
        # the student is scored over the full vocabulary: a token that the teacher rules out is pushed down
        ruled_out = (wanted == 0).all(0).nonzero()
        assert made[1].abs().sum(1).min() > 0 or ruled_out.numel() == 0


def test_equal_heads_have_no_loss() -> None:
    x, weight, _, _ = inputs()
    leaf = x.clone().requires_grad_()
    loss = output_kl(leaf, weight, (x, weight, None))
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert abs(loss.item()) < 1e-4
    assert gradient.abs().max() < 1e-5


def test_blocks_cover_every_row_once() -> None:
    for rows, vocabulary in ((1, 2048), (64, 2048), (1000, 2048), (1000, 262144)):
        covered = [row for block in row_blocks(rows, vocabulary) for row in range(rows)[block]]
        assert covered == list(range(rows))
