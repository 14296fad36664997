"""The reference itself: every layout loads, and each way of running it against transformers' plain modules."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Gemma4ForCausalLM
from transformers.integrations import gemma_quant
from transformers.integrations.gemma_quant import QuantizedLinear
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_gemma import GemmaQuantizer

from export.checkpoint.slm import read_slm_checkpoint
from export.errors import CheckpointError
from export.graphs.tree_feeds import RowTree
from export.slm.reference import TransformersSlm

from .builders import KEEP, text
from .conftest import Tiny, largest

if TYPE_CHECKING:
    from pathlib import Path

    from export.slm.reference import Activations

CHAIN = RowTree.chain(20)


def chain_logits(model: TransformersSlm, how: Activations) -> np.ndarray:
    return model.tree_logits([], CHAIN, text(20), KEEP, how)


def plain_logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([text(20)]), use_cache=False).logits[0].numpy()
    return logits[:, KEEP]


def bounded_floats(model: Any, clip: bool) -> Any:
    """transformers' modules with plain linear layers, dequantised, between clamps: what an exact graph computes."""
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear):
            linear = nn.Linear(module.in_features, module.out_features, bias=False)
            linear.weight = nn.Parameter(module._dequantize_weights(), requires_grad=False)
            if clip:
                scales = module.input_activation_scale.item(), module.output_activation_scale.item()
                linear.register_forward_pre_hook(lambda _, x, s=scales[0]: bound(x[0], s))
                linear.register_forward_hook(lambda _, x, y, s=scales[1]: bound(y, s))
            model.set_submodule(name, linear)
    return model


def bound(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.clamp(x, -128 * scale, 127 * scale) if scale else x


def test_rounded_is_transformers_own_forward(plain_folder: Path) -> None:
    ours = chain_logits(TransformersSlm(read_slm_checkpoint(plain_folder)), "rounded")
    model = Gemma4ForCausalLM.from_pretrained(plain_folder, dtype=torch.float32)
    np.testing.assert_allclose(ours, plain_logits(model), atol=1e-6)


def test_the_released_layout_with_scales_by_layer(tiny: Tiny, plain_folder: Path) -> None:
    """The same codes in the plain layout, with the grouped scales put into transformers' own table by hand."""
    model: Any = Gemma4ForCausalLM.from_pretrained(plain_folder, dtype=torch.float32)
    before = plain_logits(model)
    stored = load_file(tiny.folder / "model.safetensors")
    scales = stored["model.language_model.embed_tokens_per_layer.embedding_scale"]
    assert scales.shape == (300, 6)
    model.model.embed_tokens_per_layer.embedding_scale = nn.Parameter(scales)
    np.testing.assert_allclose(chain_logits(tiny.reference, "rounded"), plain_logits(model), atol=1e-6)
    assert largest(plain_logits(model) - before) > 0.01


@pytest.mark.parametrize(("how", "clip"), [("clipped", True), ("free", False)])
def test_bounds_without_rounding(plain_folder: Path, how: Activations, clip: bool) -> None:
    model = bounded_floats(Gemma4ForCausalLM.from_pretrained(plain_folder, dtype=torch.float32), clip)
    ours = chain_logits(TransformersSlm(read_slm_checkpoint(plain_folder)), how)
    np.testing.assert_allclose(ours, plain_logits(model), atol=1e-5)


def test_the_three_ways_differ_and_agree_in_the_large(tiny: Tiny) -> None:
    """Otherwise nothing here would show a clip that is missing."""
    rounded, clipped, free = (chain_logits(tiny.reference, how) for how in ("rounded", "clipped", "free"))
    assert largest(clipped - free) > 0.1
    assert largest(clipped - rounded) > 0.01
    assert largest(clipped) > 2.0
    for other in (rounded, free):
        assert np.corrcoef(clipped.ravel(), other.ravel())[0, 1] > 0.9


def test_trees_are_their_paths(tiny: Tiny) -> None:
    """Rows of a tree are the last rows of whole texts."""
    tree, tokens, before = RowTree((None, 0, 0, None, 3, 2)), [5, 6, 7, 8, 9, 10], text(4)
    logits = tiny.reference.tree_logits(before, tree, tokens, KEEP, "clipped")
    for row, path in enumerate(([5], [5, 6], [5, 7], [8], [8, 9], [5, 7, 10])):
        chain = RowTree.chain(4 + len(path))
        wanted = tiny.reference.tree_logits([], chain, [*before, *path], KEEP, "clipped")[-1]
        np.testing.assert_allclose(logits[row], wanted, atol=1e-5)


def test_transformers_is_left_as_it_was(tiny: Tiny) -> None:
    original = gemma_quant.apply_srq
    with pytest.raises(IndexError):
        tiny.reference.tree_logits([], CHAIN, [9999] * 20, KEEP, "clipped")
    assert gemma_quant.apply_srq is original
    assert AUTO_QUANTIZER_MAPPING["gemma"] is GemmaQuantizer


@pytest.fixture
def copy(plain_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(plain_folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_weight_that_transformers_does_not_find(copy: Path) -> None:
    checkpoint = read_slm_checkpoint(copy)
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.3.post_feedforward_layernorm.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"does not find 1 weights, the first is 'model\.layers\.3\.post_feedfor"):
        TransformersSlm(checkpoint)


@pytest.mark.parametrize(
    ("module", "bits"),
    [
        ("layers.1.per_layer_input_gate", None), ("layers.1.per_layer_input_gate", 4), ("lm_head", 8),
        ("layers.1.self_attn.q_proj", None), ("layers.1.self_attn.q_proj", 2), ("embed_tokens", 4),
    ],
)  # fmt: skip
def test_bits_that_transformers_resolves_in_another_way(copy: Path, module: str, bits: int | None) -> None:
    """An export that went on would compare the graphs with another model, or with random numbers.

    config.json changes under the open checkpoint: a rule in front of all others, or an exception.
    """
    checkpoint, name = read_slm_checkpoint(copy), module if module == "lm_head" else f"model.{module}"
    config = json.loads((copy / "config.json").read_text())
    quantization = config["quantization_config"]
    if bits is None:
        quantization["modules_to_not_convert"].append(name)
    else:
        rules, ours = quantization["module_quant_configs"], f"^{name}$"
        rules.pop(ours, None)
        quantization["module_quant_configs"] = {ours: {"num_bits": bits}, **rules}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"{module} has \d bits, transformers takes {bits}"):
        TransformersSlm(checkpoint)
