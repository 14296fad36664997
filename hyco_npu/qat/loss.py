"""KL(teacher || student) through the output layer, its gradients made on the way forward, a few rows at a time.

The logits of all rows would be most of a step's memory (512 rows x 4 steps x 262,144 tokens are 2 GB); here no more
than a block of them exists. What autograd would do is the reference of the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from hyco_npu.qat.chain import output_logits

if TYPE_CHECKING:
    from hyco_npu.qat.chain import Centroids

_BLOCK_ELEMENTS = 2**18
_BLOCK_ROWS = 64


def kl_rows(log_student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """sum over tokens of p (log p - log q), in nats [n]; a token that the teacher rules out (p = 0) adds nothing."""
    kl: torch.Tensor = torch.special.xlogy(teacher, teacher) - teacher * log_student
    return kl.sum(-1)


class _OutputKl(torch.autograd.Function):
    """sum of kl_rows(log_softmax(x W^T), softmax(t T^T)); the teacher's t and T get no gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, teacher: tuple[torch.Tensor, torch.Tensor, Centroids | None]
    ) -> torch.Tensor:
        hidden, table, centroids = teacher
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        for rows in row_blocks(len(x), len(weight)):
            wanted = output_logits(hidden[rows], table, centroids).float().softmax(-1)
            log_student = F.linear(x[rows], weight).float().log_softmax(-1)
            total += kl_rows(log_student, wanted).sum(dtype=torch.float64)
            slope = log_student.exp_().sub_(wanted)
            grad_x[rows] = (slope @ weight).to(x.dtype)
            grad_weight += (slope.T @ x[rows]).to(weight.dtype)
        ctx.save_for_backward(grad_x, grad_weight)
        return total.float()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x * grads[0], grad_weight * grads[0], None


def output_kl(
    x: torch.Tensor, weight: torch.Tensor, teacher: tuple[torch.Tensor, torch.Tensor, Centroids | None]
) -> torch.Tensor:
    """Sum of the KL of rows x [n, hidden] under output layer `weight` [vocabulary, hidden], in nats, float32 [].

    `teacher`: its own rows [n, hidden], its output layer, and the centroids of a centroid head, whose unscored tokens
    have probability 0. The student is scored over the full vocabulary.
    """
    loss: torch.Tensor = _OutputKl.apply(x, weight, teacher)  # type: ignore[no-untyped-call]
    return loss


def row_blocks(rows: int, vocabulary: int) -> list[slice]:
    """Blocks of rows whose logits stay small: in the second-level cache for a vocabulary of a few thousand."""
    step = max(_BLOCK_ROWS, _BLOCK_ELEMENTS // vocabulary)
    return [slice(start, start + step) for start in range(0, rows, step)]
