"""Cosines and sines against transformers and the oracle values that were cross-checked in public sources."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

from export.checkpoint.mtp import RopeSpec
from export.graphs.rope import inverse_frequencies, signed_rotation

FULL = RopeSpec("full_attention", 1e6, "proportional", 0.25)
SLIDING = RopeSpec("sliding_attention", 1e4, "default", 1.0)


def test_full_layers_are_proportional() -> None:
    frequencies = inverse_frequencies(FULL, 512)
    assert frequencies.shape == (256,)
    assert np.count_nonzero(frequencies) == 64
    assert frequencies[1] == pytest.approx(0.947464, abs=5e-7)
    assert frequencies[63] == pytest.approx(0.0333762, abs=5e-8)
    assert (frequencies[64:] == 0).all()


def test_sliding_layers_are_plain() -> None:
    frequencies = inverse_frequencies(SLIDING, 256)
    assert frequencies.shape == (128,)
    assert frequencies[1] == pytest.approx(0.930572, abs=5e-7)
    assert (frequencies > 0).all()


@pytest.mark.parametrize(("rope", "head_dim"), [(FULL, 512), (SLIDING, 256)])
@pytest.mark.parametrize("position", [0, 1, 1000])
def test_equals_transformers(rope: RopeSpec, head_dim: int, position: int) -> None:
    rotary = Gemma4TextRotaryEmbedding(Gemma4TextConfig(num_hidden_layers=6, vocab_size=8))
    wanted_cos, wanted_sin = rotary(torch.zeros(1), torch.tensor([[position]]), rope.kind)
    cos, sin = signed_rotation(inverse_frequencies(rope, head_dim), position)
    assert cos.shape == sin.shape == (1, 1, 1, head_dim)
    unsigned = np.concatenate([-sin[..., : head_dim // 2], sin[..., head_dim // 2 :]], axis=-1)
    # 1000 radians in float32 are known to 6e-5
    np.testing.assert_allclose(cos.ravel(), wanted_cos.numpy().ravel(), atol=1e-4)
    np.testing.assert_allclose(unsigned.ravel(), wanted_sin.numpy().ravel(), atol=1e-4)
