"""Loading a verifier: flat and multimodal layout, and the weights that transformers would invent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from calibration.errors import CalibrationError
from calibration.verifier import load_verifier

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model() -> Gemma4ForCausalLM:
    config = Gemma4TextConfig(
        vocab_size=60,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
    )
    return Gemma4ForCausalLM(config).float().eval()


def write(model: Gemma4ForCausalLM, folder: Path, prefix: str, drop: str = "") -> None:
    """A checkpoint with tensors under `prefix`, in the multimodal form if that is the real one's prefix."""
    text = model.config.to_dict()
    composite = {"model_type": "gemma4", "text_config": text, "vision_config": None, "audio_config": None}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(composite if "language_model" in prefix else text))
    tensors = {
        name.replace("model.", prefix, 1): tensor.clone()
        for name, tensor in model.state_dict().items()
        if not name.startswith("lm_head") and name != drop
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_both_layouts_give_the_same_logits(model: Gemma4ForCausalLM, tmp_path: Path, prefix: str) -> None:
    write(model, tmp_path / "verifier", prefix)
    ids = torch.tensor([[2, 5, 9, 30]])
    with torch.no_grad():
        assert torch.equal(load_verifier(tmp_path / "verifier")(ids).logits, model(ids).logits)


def test_a_weight_that_is_not_there_is_named(model: Gemma4ForCausalLM, tmp_path: Path) -> None:
    write(model, tmp_path / "verifier", "model.", drop="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(CalibrationError, match=r"1 weights .* 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_verifier(tmp_path / "verifier")
