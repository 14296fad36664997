"""The bit map against what transformers' own replacement of modules makes of the same settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.integrations.gemma_quant import QuantizedEmbedding, QuantizedLinear
from transformers.quantizers.quantizer_gemma import GemmaQuantizer
from transformers.utils.quantization_config import GemmaQuantizationConfig

from export.checkpoint.gemma_bits import read_bit_map
from export.errors import CheckpointError
from tests.export.checkpoint.slm_builders import BITS, fresh_model, quantization_config, slm_config

FOLDER = Path("checkpoint")
_CONVERTIBLE = ("Linear", "Gemma4TextScaledWordEmbedding")


def rules(**bits: int) -> dict[str, Any]:
    return {pattern: {"num_bits": value} for pattern, value in bits.items()}


def reference_bits(config: dict[str, Any]) -> dict[str, int | None]:
    """Module name -> bits in transformers, through its quantizer's own hook."""
    model = fresh_model(config)
    names = [name for name, module in model.named_modules() if type(module).__name__ in _CONVERTIBLE]
    GemmaQuantizer(GemmaQuantizationConfig(**config["quantization_config"]))._process_model_before_weight_loading(model)
    replaced = {name: model.get_submodule(name) for name in names}
    quantised = (QuantizedLinear, QuantizedEmbedding)
    return {name: module.num_bits if isinstance(module, quantised) else None for name, module in replaced.items()}


REVERSED = {pattern: {"num_bits": bits} for pattern, bits in reversed(BITS.items())}


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_bits": 8, "module_quant_configs": None},
        {"num_bits": 2, "module_quant_configs": {}},
        # The order decides: 2 bits for every MLP, where the general pattern comes first and starts as far left.
        {"module_quant_configs": rules(**{r"layers\.\d+\.mlp": 2, r"layers\.[0-2]\.mlp": 4})},
        {"module_quant_configs": rules(**{r"layers\.[0-2]\.mlp": 4, r"layers\.\d+\.mlp": 2})},
        # One search over all patterns: what starts further left beats what is listed first.
        {"module_quant_configs": REVERSED},
        {"module_quant_configs": rules(**{"mlp": 2, "layers": 8})},
        {"module_quant_configs": rules(**{r"up_proj|q_proj": 2, r"(gate|down)_proj": 8, "": 4})},
        # An entry without num_bits takes the default, not the next pattern.
        {"num_bits": 8, "module_quant_configs": {"mlp": {}, "up_proj": {"num_bits": 2}}},
        {"quantize_embeddings": False},
        {"modules_to_not_convert": None},
        {"modules_to_not_convert": []},
        {"modules_to_not_convert": ["mlp.up_proj", r".*layers\.1\..*", "proj"]},
        {"modules_to_not_convert": ["model.language_model.layers.1", "model.layers.2.self_attn", "embed_tokens"]},
    ],
)
def test_bits_are_those_of_transformers(nested: bool, changes: dict[str, Any]) -> None:
    config = slm_config(nested=nested, quantization_config=quantization_config(**changes))
    bits = read_bit_map(FOLDER, config)
    reference = reference_bits(config)
    # 7 linear layers in each of 6 layers, k and v in the 3 owners, two around them, two tables
    assert len(reference) == 6 * 7 + 3 * 2 + 2 + 2
    for module, expected in reference.items():
        found = bits.table(module) if "embed_tokens" in module else bits.linear(module)
        assert found == expected, module


def test_the_tiny_map_has_all_three_widths_and_floats() -> None:
    assert set(reference_bits(slm_config()).values()) == {2, 4, 8, None}


def test_the_map_may_stand_in_the_text_config() -> None:
    inner = slm_config({"quantization_config": quantization_config(num_bits=8, module_quant_configs=None)})
    del inner["quantization_config"]
    assert read_bit_map(FOLDER, inner).linear("lm_head") == 8


def test_a_module_that_nothing_covers_is_an_error() -> None:
    settings = quantization_config(module_quant_configs=rules(mlp=2))
    del settings["num_bits"]
    bits = read_bit_map(FOLDER, {"quantization_config": settings})
    assert bits.linear("model.layers.0.mlp.up_proj") == 2
    assert bits.linear("model.per_layer_model_projection") is None
    with pytest.raises(CheckpointError, match=r"nothing of the bits of 'lm_head'"):
        bits.linear("lm_head")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (None, "quantization_config is None; only checkpoints with quant_method 'gemma'"),
        ([], "quantization_config is None"),
        ("gemma", "quantization_config is 'gemma'"),
        (quantization_config(quant_method="awq"), "quant_method is 'awq'"),
        ({"num_bits": 4}, "quant_method is None"),
        (quantization_config(num_bits=3), "num_bits asks for 3 bits; supported are 2, 4, 8"),
        (quantization_config(num_bits="4"), "num_bits asks for '4' bits"),
        (quantization_config(quantize_embeddings=1), "quantize_embeddings is 1"),
        (quantization_config(module_quant_configs=rules(mlp=16)), r"module_quant_configs\['mlp'\] asks for 16 bits"),
        (quantization_config(module_quant_configs=rules(mlp=True)), "asks for True bits"),
        (quantization_config(module_quant_configs={"mlp": 4}), r"module_quant_configs\['mlp'\] is 4"),
        (quantization_config(module_quant_configs={"mlp": {"group_size": 32}}), "the one known option is num_bits"),
        (quantization_config(module_quant_configs=["mlp"]), "module_quant_configs holds a list"),
        (quantization_config(module_quant_configs=rules(**{"(mlp": 4})), r"'\(mlp' is no regular expression"),
        (quantization_config(module_quant_configs=rules(**{"(?P<part>mlp)": 4})), "has a named group"),
        (quantization_config(module_quant_configs=rules(**{"(?i)mlp": 4, "x": 4})), "cannot be joined"),
        (quantization_config(modules_to_not_convert="lm_head"), "modules_to_not_convert is 'lm_head'"),
        (quantization_config(modules_to_not_convert=["["]), r"'\[' is no regular expression"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_bit_map(FOLDER, {"quantization_config": settings})
    assert str(caught.value).startswith("checkpoint/config.json: ")
