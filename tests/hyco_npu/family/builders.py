"""Small families and corpora for the tests: the real architecture, random weights that make telling outputs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

LIKELY_TOKENS = (10, 11, 12, 13)


def make_telling(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Random norms and layer scalars, and an output layer that prefers four tokens, so that drafts match by chance."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight") and "q_norm" not in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
        for module in model.modules():
            if hasattr(module, "layer_scalar"):
                module.layer_scalar.fill_(0.6 + 0.8 * torch.rand((), generator=generator).item())
        table = model.get_output_embeddings().weight
        table[list(LIKELY_TOKENS)] = 0.2 * torch.randn(len(LIKELY_TOKENS), table.shape[1], generator=generator)
    return model.eval()


def write_problems(path: Path, count: int) -> Path:
    """Problems of one length in tokens (digits are single tokens), as GSM8K's JSON lines."""
    problems = [
        {
            "question": f"Tom has {10 + i % 90} apples and eats {1 + i % 9} a day. How many in {2 + i % 8} days?",
            "answer": f"He eats {(1 + i % 9) * (2 + i % 8)}.\n#### {i}",
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems), encoding="utf-8")
    return path
