"""Fused norms against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm

from calibration.verifier import load_verifier
from hyco_npu.decode.fused_norms import fuse_norms
from hyco_npu.family import VERIFIER_DIR


def test_the_models_logits_stay() -> None:
    model, tokens = load_verifier(VERIFIER_DIR), torch.arange(300, 380)[None]
    with torch.no_grad():
        before = model(tokens).logits
        fuse_norms(model)
        after = model(tokens).logits
    norms = [module for module in model.modules() if isinstance(module, Gemma4RMSNorm)]
    assert all("forward" in vars(norm) for norm in norms)
    assert {norm.with_scale for norm in norms} == {True, False}
    torch.testing.assert_close(after, before, rtol=0, atol=2e-5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("with_scale", [True, False])
def test_a_norm_is_transformers(scale: float, with_scale: bool) -> None:
    norm = Gemma4RMSNorm(48, eps=1e-6, with_scale=with_scale)
    if with_scale:
        torch.nn.init.uniform_(norm.weight, 0.3, 0.9)
    x = torch.randn(2, 7, 48) * scale
    with torch.no_grad():
        wanted = norm(x)
        fuse_norms(Holder(norm))  # type: ignore[arg-type]
        torch.testing.assert_close(norm(x), wanted, rtol=1e-5, atol=1e-6)


def test_other_types_are_left_alone() -> None:
    norm = Gemma4RMSNorm(8).to(torch.bfloat16)
    fuse_norms(Holder(norm))  # type: ignore[arg-type]
    assert "forward" not in vars(norm)


class Holder(torch.nn.Module):
    def __init__(self, norm: Gemma4RMSNorm) -> None:
        super().__init__()
        self.norm = norm

    @property
    def dtype(self) -> torch.dtype:
        return next(self.norm.parameters(), torch.empty(0)).dtype
