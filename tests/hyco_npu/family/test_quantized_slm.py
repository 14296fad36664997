"""The SLM's stored form: transformers' GemmaQuantizer and our reader agree on every code, and with the training."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Gemma4ForCausalLM
from transformers.integrations.gemma_quant import QuantizedEmbedding, QuantizedLinear, _unpack_int2, _unpack_int4

from export.checkpoint.slm import StoredWeight, read_slm_checkpoint
from hyco_npu.family import SLM_DIR, architecture
from hyco_npu.family.loop import StageOptions, train_stage
from hyco_npu.family.qat import RoundedCache, make_quantization_aware
from hyco_npu.family.quantized_slm import bit_map, save_quantized
from hyco_npu.family.stages import load_slm
from tests.hyco_npu.family.builders import make_telling

if TYPE_CHECKING:
    from pathlib import Path

    from export.checkpoint.slm import SlmCheckpoint

SHIPPED = "shipped"
LINEARS = {"q_proj": 4, "k_proj": 4, "v_proj": 4, "o_proj": 4, "per_layer_input_gate": 8, "per_layer_projection": 8}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gemma4ForCausalLM, Path]:
    """A model after two steps and its folder."""
    folder = tmp_path_factory.mktemp("slm")
    torch.manual_seed(6)
    model = make_telling(architecture.build_slm(), seed=6)
    ids = torch.randint(6, 2048, (2, 24))
    make_quantization_aware(model, bit_map(), ids)

    def loss(_: int) -> dict[str, torch.Tensor]:
        return {"loss": model(ids, labels=ids, cache=RoundedCache(model), use_cache=False).loss}

    train_stage(model, loss, StageOptions("slm", 2, 0.3, 0.0, folder))
    save_quantized(model, folder / "slm")
    return model.eval(), folder / "slm"


@pytest.fixture(params=["trained", SHIPPED])
def folder(request: pytest.FixtureRequest, trained: tuple[Gemma4ForCausalLM, Path]) -> Path:
    return SLM_DIR if request.param == SHIPPED else trained[1]


def test_every_code_and_scale_equals_our_reader_s(folder: Path) -> None:
    model, report = Gemma4ForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ours = read_slm_checkpoint(folder)
    seen = 0
    for name, module in model.named_modules():
        short = name.removeprefix("model.")
        if isinstance(module, QuantizedLinear):
            _assert_same(ours.weight(short), module.weight, module.weight_scale, module)
            scales = module.input_activation_scale, module.output_activation_scale
            assert [scale.item() for scale in scales] == [scale or 0.0 for scale in ours.activation_scales(short)]
        elif isinstance(module, QuantizedEmbedding):
            stored = _table(ours, short)
            _assert_same(stored, module.embedding_quantized, module.embedding_scale, module)
        else:
            continue
        seen += 1
    # lm_head, two tables, 3 layers of 4 + 3 + 2 linear layers, 3 of 2 + 3 + 2
    assert seen == 3 + 3 * 9 + 3 * 7


def _table(ours: SlmCheckpoint, name: str) -> StoredWeight:
    read = ours.per_layer_rows if name.endswith("per_layer") else ours.embedding_rows
    return read(torch.arange(2048))


def _assert_same(ours: StoredWeight, packed: torch.Tensor, scale: torch.Tensor, module: Any) -> None:
    width = getattr(module, "in_features", None) or module.embedding_dim
    unpack = {2: _unpack_int2, 4: _unpack_int4, 8: lambda codes, _: codes}[module.num_bits]
    assert ours.bits == module.num_bits
    assert torch.equal(ours.codes, unpack(packed, width))
    assert scale.dtype == ours.scale.dtype == torch.float32
    assert torch.equal(ours.scale, scale)
    assert ours.codes.unique().numel() > 1


def test_the_bits_are_e2b_s_map(folder: Path) -> None:
    model = Gemma4ForCausalLM.from_pretrained(folder)
    expected = {"lm_head": 2, "model.embed_tokens": 2, "model.embed_tokens_per_layer": 4}
    for index in range(6):
        bits = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), 4 if index < 3 else 2) | LINEARS
        for name, module in model.model.layers[index].named_modules():
            if name.split(".")[-1] in bits:
                expected[f"model.layers.{index}.{name}"] = bits[name.split(".")[-1]]
                assert isinstance(module, QuantizedLinear)
    assert {n: m.num_bits for n, m in model.named_modules() if hasattr(m, "num_bits")} == expected
    assert type(model.model.per_layer_model_projection) is torch.nn.Linear
    assert model.model.per_layer_model_projection.weight.dtype == torch.bfloat16


def test_the_first_pattern_that_matches_says_the_bits(folder: Path) -> None:
    """transformers takes the match furthest to the left; a reader that takes the first pattern must find the same."""
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    rules = {pattern: options["num_bits"] for pattern, options in settings["module_quant_configs"].items()}
    model = Gemma4ForCausalLM.from_pretrained(folder)
    for name, module in model.named_modules():
        if hasattr(module, "num_bits"):
            assert next(bits for pattern, bits in rules.items() if re.search(pattern, name)) == module.num_bits


def test_all_scales_are_calibrated_but_that_of_the_logits(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    zero = [name for name, tensor in tensors.items() if name.endswith("_scale") and not (tensor > 0).all()]
    assert zero == ["lm_head.output_activation_scale"]
    caches = [name for name in tensors if name.endswith("cache_scale")]
    assert sorted(caches) == [f"model.layers.{i}.self_attn.{kind}_cache_scale" for i in range(3) for kind in "kv"]


def test_transformers_computes_what_the_training_computed(trained: tuple[Gemma4ForCausalLM, Path]) -> None:
    """Without the cache's rounding, which transformers leaves out; floats rounded to bf16, as they are stored."""
    model, folder = trained
    ids = torch.randint(6, 2048, (2, 90))
    loaded = load_slm(folder)
    assert loaded.model.norm.weight.dtype == torch.float32
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name or "layer_scalar" in name or "per_layer_model_projection" in name:
                tensor.copy_(tensor.bfloat16())
        logits = loaded(ids, use_cache=False).logits
        assert logits.dtype == torch.float32
        assert logits.std() > 0.01
        torch.testing.assert_close(logits, model(ids, use_cache=False).logits, rtol=0, atol=1e-6)


def test_cache_scales_are_the_learned_ones(trained: tuple[Gemma4ForCausalLM, Path]) -> None:
    model, folder = trained
    ours = read_slm_checkpoint(folder)
    for layer, owner in enumerate((0, 1, 2, 1, 1, 2)):
        attention = model.model.layers[owner].self_attn
        learned = attention.log_k_cache_scale.exp().item(), attention.log_v_cache_scale.exp().item()
        assert ours.cache_scales(layer) == learned


def test_what_a_broken_write_left_is_replaced(trained: tuple[Gemma4ForCausalLM, Path], tmp_path: Path) -> None:
    model, folder = trained
    (tmp_path / "slm.tmp").mkdir()
    (tmp_path / "slm.tmp" / "stale.safetensors").write_text("")
    save_quantized(model, tmp_path / "slm")
    assert sorted(p.name for p in (tmp_path / "slm").iterdir()) == sorted(p.name for p in folder.iterdir())
    assert [p.name for p in tmp_path.iterdir()] == ["slm"]
