"""Which tensors and configurations of an SLM are taken and which refused, and the real size against its list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from export.checkpoint.header import DTYPES
from export.checkpoint.mtp import RopeSpec
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.slm import SlmConfig, SlmLayer, read_slm_checkpoint, read_slm_config
from export.checkpoint.slm_tensors import expected_tensors
from export.errors import CheckpointError
from hyco_npu.family.real_models import REAL_MODELS
from tests.export.checkpoint.builders import FULL, SLIDING, change_weights
from tests.export.checkpoint.slm_builders import HIDDEN, PLE, quantization_config, slm_config, write_slm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hyco_npu.family.real_models import TensorSpec

    Change = Callable[[dict[str, torch.Tensor]], None]

NESTED = "model.language_model."
ATTENTION, MLP = f"{NESTED}layers.0.self_attn.", f"{NESTED}layers.0.mlp."
TABLE = f"{NESTED}embed_tokens_per_layer."


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_sparse(folder: Path, specs: tuple[TensorSpec, ...]) -> None:
    """A checkpoint of full size that takes no room: a true header, and a hole where the data would be (all zeros)."""
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header, end = {}, 0
    for spec in specs:
        place = [end, end := end + spec.size_bytes]
        header[spec.name] = {"dtype": codes[spec.dtype], "shape": list(spec.shape), "data_offsets": place}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


@pytest.mark.parametrize("nested", [True, False])
def test_the_configuration_is_resolved_as_transformers_resolves_it(tmp_path: Path, nested: bool) -> None:
    layers = [SlmLayer(SLIDING, 8, 1, 24, index) for index in range(2)] + [SlmLayer(FULL, 16, 1, 24, 2)]
    layers += [SlmLayer(SLIDING, 8, 1, 48, 1)] * 2 + [SlmLayer(FULL, 16, 1, 48, 2)]
    assert read_slm_config(write_config(tmp_path, slm_config(nested=nested))) == SlmConfig(
        hidden_size=HIDDEN,
        num_attention_heads=4,
        layers=tuple(layers),
        ropes=(RopeSpec(SLIDING, 1e4, "default", 1.0), RopeSpec(FULL, 1e6, "proportional", 0.25)),
        vocab_size=64,
        per_layer_vocab_size=64,
        per_layer_width=PLE,
        sliding_window=8,
        rms_norm_eps=1e-6,
        final_logit_softcapping=30.0,
    )


def test_settings_that_may_be_absent(tmp_path: Path) -> None:
    changes = {"num_kv_shared_layers": 0, "final_logit_softcapping": None, "use_double_wide_mlp": False}
    config = read_slm_config(write_config(tmp_path, slm_config(changes)))
    assert config.cache_owners == tuple(range(6))
    assert {layer.intermediate_size for layer in config.layers} == {24}
    assert config.final_logit_softcapping is None


def test_the_real_size_is_the_list_of_the_real_model(tmp_path: Path) -> None:
    model = REAL_MODELS["e2b-qat-mobile"]()
    write_config(tmp_path, model.config)
    write_sparse(tmp_path, model.tensors)
    ours = read_slm_checkpoint(tmp_path)
    forms = expected_tensors(ours.config, ours.bits, CheckpointReader(tmp_path))
    assert {name: form.shape for name, form in forms.items()} == {spec.name: spec.shape for spec in model.tensors}
    assert all(spec.dtype in forms[spec.name].dtypes for spec in model.tensors)
    # Rows of 1.2 GB and 0.1 GB tables at no cost; a byte of zeros is the lowest code, 4 bits and 2 bits.
    rows = ours.per_layer_rows(torch.tensor([262_143, 0]))
    assert (rows.codes.shape, rows.scale.shape, rows.bits) == ((2, 35 * 256), (2, 35), 4)
    assert set(rows.codes.unique().tolist()) == {-8}
    assert set(ours.embedding_rows(torch.tensor([262_143])).codes.unique().tolist()) == {-2}
    assert ours.weight("lm_head", torch.arange(3)).codes.shape == (3, 1536)
    with pytest.raises(CheckpointError, match="token id 262144 does not exist"):
        ours.per_layer_rows(torch.tensor([262_144]))


def test_the_real_model_has_15_caches(tmp_path: Path) -> None:
    config = read_slm_config(write_config(tmp_path, REAL_MODELS["e2b-qat-mobile"]().config))
    assert config.cache_owners == tuple(range(15))
    wide = [index for index in config.cache_owners if config.layers[index].head_dim == 512]
    assert wide == [4, 9, 14]
    assert {config.layers[index].head_dim for index in config.cache_owners if index not in wide} == {256}
    assert [layer.owner for layer in config.layers[15:]] == [13, 13, 13, 13, 14] * 4
    assert [layer.intermediate_size for layer in config.layers] == [6144] * 15 + [12288] * 20
    assert {layer.num_key_value_heads for layer in config.layers} == {1}
    assert (config.sliding_window, config.per_layer_width, config.final_logit_softcapping) == (512, 256, 30.0)


def drop(name: str) -> Change:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.__setitem__(name, tensor)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop(f"{ATTENTION}q_proj.weight"), rf"missing: '{ATTENTION}q_proj\.weight'"),
        (drop(f"{ATTENTION}k_proj.weight_scale"), r"missing: .*k_proj\.weight_scale"),
        (drop(f"{ATTENTION}k_norm.weight"), r"missing: .*k_norm"),
        (drop(f"{ATTENTION}v_cache_scale"), r"missing: .*v_cache_scale"),
        (drop(f"{MLP}up_proj.output_activation_scale"), r"missing: .*output_activation_scale"),
        (drop(f"{NESTED}layers.5.layer_scalar"), r"missing: .*layers\.5\.layer_scalar"),
        (drop("lm_head.weight"), r"missing: 'lm_head\.weight'"),
        (drop(f"{TABLE}embedding_quantized"), r"missing: .*embedding_quantized"),
        # 2-bit codes where the map says 4, and the other way round
        (put(f"{MLP}up_proj.weight", bytes_of(24, 5)), r"up_proj.weight' has shape \[24, 5\].*\[24, 9\]"),
        (put("lm_head.weight", bytes_of(64, 9)), r"lm_head.weight' has shape \[64, 9\].*\[64, 5\]"),
        (put(f"{MLP}up_proj.weight_scale", torch.ones(24, 2)), r"weight_scale' has shape \[24, 2\]"),
        (put(f"{TABLE}embedding_scale", torch.ones(64, 3)), r"embedding_scale' has shape \[64, 3\].*\[64, 6\]"),
        (put(f"{NESTED}embed_tokens.embedding_scale", torch.ones(64, 6)), r"has shape \[64, 6\].*\[64, 1\]"),
        (put(f"{ATTENTION}k_cache_scale", torch.ones(8)), r"k_cache_scale' has shape \[8\]"),
        (put(f"{MLP}up_proj.weight", bytes_of(24, 9).char()), r"stored as torch.int8, but the bits .* torch.uint8"),
        (
            put(f"{NESTED}layers.0.per_layer_input_gate.weight", bytes_of(16, 18)),
            r"per_layer_input_gate.weight' is stored as torch.uint8, but .* torch.int8",
        ),
        (put(f"{MLP}up_proj.weight_scale", torch.ones(24, 1).bfloat16()), "stored as torch.bfloat16"),
        (put(f"{NESTED}norm.weight", torch.ones(18, dtype=torch.int8)), "norm.weight' is stored as torch.int8"),
        (put(f"{ATTENTION}v_norm.weight", torch.ones(8)), "no place for: .*v_norm"),
        (put(f"{NESTED}layers.3.self_attn.q_cache_scale", torch.ones(())), "no place for: .*q_cache_scale"),
        (put(f"{NESTED}layers.30.self_attn.k_proj.weight", torch.ones(1)), "no place for: .*k_proj"),
        (put(f"{NESTED}layers.6.layer_scalar", torch.ones(1)), r"no place for: .*layers\.6\.layer_scalar"),
        (put(f"{NESTED}vision_tower.x", torch.ones(1)), "no place for: .*vision_tower"),
        (put("model.layers.0.layer_scalar", torch.ones(1)), r"no place for: 'model\.layers\.0\.layer_scalar'"),
        (put(f"{MLP}up_proj.bias", torch.ones(24)), "no place for: .*bias"),
    ],
)
def test_wrong_tensors_are_refused_on_opening(tmp_path: Path, change: Change, words: str) -> None:
    change_weights(write_slm(tmp_path), change)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_slm_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_checkpoint_without_a_language_model_misses_its_tensors(tmp_path: Path) -> None:
    change_weights(write_slm(tmp_path), lambda tensors: [tensors.pop(n) for n in list(tensors) if n.startswith(NESTED)])
    with pytest.raises(CheckpointError, match=r"missing: 'model\.embed_tokens\.embedding_quantized'"):
        read_slm_checkpoint(tmp_path)


def test_tables_must_be_quantised(tmp_path: Path) -> None:
    settings = quantization_config(quantize_embeddings=False)
    write_config(write_slm(tmp_path), slm_config(quantization_config=settings))
    with pytest.raises(CheckpointError, match=r"embed_tokens' is not quantised \(quantize_embeddings is false\)"):
        read_slm_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (slm_config(model_type="gemma3"), "model_type is 'gemma3', expected 'gemma4' or 'gemma4_text'"),
        (slm_config(text_config=None), "text_config is absent"),
        (slm_config(tie_word_embeddings=True), "tie_word_embeddings is true"),
        (slm_config({"tie_word_embeddings": True}, nested=False), "tie_word_embeddings is true"),
        (slm_config({"hidden_size": "wide"}), "does not accept this configuration"),
        (slm_config({"layer_types": [SLIDING, FULL]}), "does not accept this configuration"),
        # The kinds of the owners must be the kinds of those that read them.
        (slm_config({"layer_types": [SLIDING] * 5 + [FULL]}), "does not accept this configuration.*producing a cache"),
        (slm_config({"hidden_activation": "relu"}), "hidden_activation is 'relu'"),
        (slm_config({"attention_bias": True}), "attention_bias is true"),
        (slm_config({"attention_k_eq_v": True}), "attention_k_eq_v is true"),
        (slm_config({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}), "enable_moe_block is true"),
        (slm_config({"use_bidirectional_attention": "all"}), "use_bidirectional_attention is 'all'"),
        (slm_config({"hidden_size_per_layer_input": 0}), "hidden_size_per_layer_input is 0"),
        (slm_config({"num_kv_shared_layers": 6}), "num_kv_shared_layers is 6 of 6 layers"),
        (slm_config({"num_kv_shared_layers": -1}), "num_kv_shared_layers is -1"),
        (slm_config({"num_key_value_heads": 3}), "4 heads cannot share 3"),
        (
            slm_config({"per_layer_config": {"2": {"head_dim": 16}, "5": {"head_dim": 32}}}),
            "layer 5 reads the cache of layer 2, but its key-value heads have another shape",
        ),
        (
            slm_config(
                {"rope_parameters": {SLIDING: {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, FULL: {}}}
            ),
            "config.json: ",
        ),
    ],
)
def test_configurations_that_cannot_be_exported_are_refused(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_slm_config(write_config(tmp_path, config))
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    write_slm(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: absent"):
        read_slm_checkpoint(tmp_path)
