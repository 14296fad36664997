"""The random checkpoints' tensor lists against transformers' own classes, and what is written of them."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    GemmaQuantizationConfig,
    GenerationConfig,
)
from transformers.integrations.gemma_quant import QuantizedLinear, replace_with_quant_layers

from export.checkpoint.config import read_stop_set
from export.checkpoint.mtp import read_mtp_config
from export.checkpoint.reader import CheckpointReader
from hyco_npu.family import random as random_module
from hyco_npu.family.random import random_tensor, write_random_checkpoint
from hyco_npu.family.real_models import (
    BIT_WIDTHS,
    REAL_MODELS,
    VOCAB_SIZE,
    Codes,
    Normal,
    TensorSpec,
    Uniform,
)
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hyco_npu.family.real_models import RealModel

Shapes = dict[str, tuple[int, ...]]


def shapes_of(model: RealModel) -> Shapes:
    names = [spec.name for spec in model.tensors]
    assert len(names) == len(set(names))
    return {spec.name: spec.shape for spec in model.tensors}


def shapes_in(module: torch.nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def conditional(config: dict[str, Any]) -> Gemma4ForConditionalGeneration:
    with torch.device("meta"):
        return Gemma4ForConditionalGeneration(Gemma4Config.from_dict(config))


def test_the_assistant_has_transformers_tensors() -> None:
    model = REAL_MODELS["26b-a4b-assistant"]()
    with torch.device("meta"):
        reference = Gemma4AssistantForCausalLM(Gemma4AssistantConfig.from_dict(model.config))
    expected = shapes_in(reference)
    assert expected.pop("lm_head.weight") == expected["model.embed_tokens.weight"]
    assert shapes_of(model) == expected
    assert {spec.dtype for spec in model.tensors} == {torch.bfloat16}
    # 419.69M in matrices, as derived from the dimensions; transformers counts the norms as well.
    numel = {spec.name: torch.Size(spec.shape).numel() for spec in model.tensors}
    assert sum(numel[spec.name] for spec in model.tensors if len(spec.shape) == 2) == 419_692_544
    scalars = sum(name.endswith("layer_scalar") for name in numel)
    assert sum(numel.values()) - scalars == sum(p.numel() for p in reference.parameters()) == 419_711_232


def test_the_verifier_has_transformers_tensors() -> None:
    model = REAL_MODELS["26b-a4b"]()
    expected = shapes_in(conditional(model.config))
    assert expected.pop("lm_head.weight") == expected["model.language_model.embed_tokens.weight"] == (VOCAB_SIZE, 2816)
    assert shapes_of(model) == expected
    assert sum(spec.size_bytes for spec in model.tensors) == pytest.approx(50.5e9, rel=0.01)


def test_the_slm_has_transformers_quantised_tensors() -> None:
    model = REAL_MODELS["e2b-qat-mobile"]()
    reference = conditional(model.config)
    settings = GemmaQuantizationConfig(**model.config["quantization_config"])
    with torch.device("meta"):
        replace_with_quant_layers(reference, settings, settings.modules_to_not_convert)
    expected = shapes_in(reference)
    ours = shapes_of(model)
    # transformers does not load the cache scales, and sizes every table for one scale a row; the file has one a layer.
    caches = {name for name in ours if re.search(r"\.self_attn\.[kv]_cache_scale$", name)}
    assert len(caches) == 2 * 15
    table = "model.language_model.embed_tokens_per_layer.embedding_scale"
    assert (ours[table], expected[table]) == ((VOCAB_SIZE, 35), (VOCAB_SIZE, 1))
    expected[table] = (VOCAB_SIZE, 35)
    assert {name: shape for name, shape in ours.items() if name not in caches} == expected
    types = {name: tensor.dtype for name, tensor in reference.state_dict().items()}
    for spec in model.tensors:
        if spec.name not in caches:
            # Our plain tensors are BF16; a fresh model is float32 there.
            plain = types[spec.name] == torch.float32 and not spec.name.endswith("_scale")
            assert spec.dtype == (torch.bfloat16 if plain else types[spec.name]), spec.name


def test_the_slms_bits_follow_the_first_match() -> None:
    reference = {
        "lm_head": 2,
        "model.language_model.embed_tokens": 2,
        "model.language_model.embed_tokens_per_layer": 4,
        "model.language_model.layers.14.mlp.down_proj": 4,
        "model.language_model.layers.15.mlp.down_proj": 2,
        "model.language_model.layers.3.mlp.up_proj": 4,
        "model.language_model.layers.30.mlp.up_proj": 2,
        "model.language_model.layers.34.per_layer_input_gate": 8,
        "model.language_model.layers.0.per_layer_projection": 8,
        "model.language_model.layers.20.self_attn.o_proj": 4,
        "model.language_model.per_layer_model_projection": None,
    }
    for module, bits in reference.items():
        assert next((b for pattern, b in BIT_WIDTHS.items() if re.search(pattern, module)), None) == bits, module


@pytest.mark.parametrize("like", REAL_MODELS)
def test_what_is_written_opens_as_what_it_is_like(tmp_path: Path, like: str) -> None:
    out = tmp_path / "new" / like
    written = write_random_checkpoint(like, out, tensors=r"\.(0|14)\.(layer_scalar|self_attn\.q_norm\.weight)$")
    assert written.folder == out
    assert written.files == ("config.json", "generation_config.json", "model.safetensors")
    assert written.size_bytes == sum(path.stat().st_size for path in out.iterdir())
    assert list(tmp_path.rglob("*.partial")) == []
    reader = CheckpointReader(out)
    assert written.tensor_count == len(reader.names) == (2 if like == "26b-a4b-assistant" else 4)
    for name in reader.names:
        if name.endswith("layer_scalar"):
            assert 0.3 <= float(reader.load(name)) <= 0.9
    assert read_stop_set(out).token_ids == (1, 50, 106)
    generation = GenerationConfig.from_pretrained(out)
    assert (generation.eos_token_id, generation.top_k, generation.top_p) == ([1, 106, 50], 64, 0.95)


def test_the_assistants_configuration_has_the_real_shape(tmp_path: Path) -> None:
    write_random_checkpoint("26b-a4b-assistant", tmp_path / "out", tensors="layer_scalar")
    head = read_mtp_config(tmp_path / "out")
    assert [(layer.head_dim, layer.num_key_value_heads) for layer in head.layers] == [(256, 8)] * 3 + [(512, 2)]
    assert head.tensor_shapes() == shapes_of(REAL_MODELS["26b-a4b-assistant"]())


def test_shards_and_index_are_transformers_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_module, "MAX_SHARD_BYTES", 12_000)
    written = write_random_checkpoint("26b-a4b-assistant", tmp_path / "out", tensors="layernorm")
    shards = [name for name in written.files if name.endswith(".safetensors")]
    # 16 norms of 2,048 bytes, five to a shard.
    assert shards == [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 16 * 2048
    for shard in shards:
        tensors = load_file(tmp_path / "out" / shard)
        assert set(tensors) == {name for name, file in index["weight_map"].items() if file == shard}
    assert len(CheckpointReader(tmp_path / "out").names) == written.tensor_count == 16


def test_values_depend_on_seed_and_name_alone(tmp_path: Path) -> None:
    for name, pattern, seed in (("few", r"layers\.0\.layer", 5), ("many", "layer_scalar", 5), ("other", "layer_s", 6)):
        write_random_checkpoint("26b-a4b-assistant", tmp_path / name, tensors=pattern, seed=seed)
    few, many, other = (load_file(tmp_path / n / "model.safetensors") for n in ("few", "many", "other"))
    for name, tensor in few.items():
        assert torch.equal(tensor, many[name])
        assert not torch.equal(tensor, other[name])
    assert len({float(value) for value in many.values()}) > 1


def test_fillings_have_their_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_module, "_CHUNK", 1000)
    normal = random_tensor(TensorSpec("n", (200, 333), torch.bfloat16, Normal(0.1)), 0).float()
    assert normal.std() == pytest.approx(0.1, rel=0.02)
    assert abs(float(normal.mean())) < 2e-3
    uniform = random_tensor(TensorSpec("u", (100, 77), torch.float32, Uniform(0.3, 0.9)), 0)
    assert (float(uniform.min()), float(uniform.max())) == pytest.approx((0.3, 0.9), abs=0.01)
    codes = random_tensor(TensorSpec("c", (100, 1001), torch.uint8, Codes(4)), 0)
    assert not torch.equal(codes.view(-1)[:1000], codes.view(-1)[1000:2000])
    assert random_tensor(TensorSpec("s", (), torch.float32, Uniform(0.02, 0.08)), 0).shape == ()


@pytest.mark.parametrize(("bits", "in_features"), [(2, 400), (4, 200), (8, 100)])
def test_codes_mean_what_transformers_reads(bits: int, in_features: int) -> None:
    layer = QuantizedLinear(in_features, 300, num_bits=bits)
    stored = layer.weight.data
    layer.weight.data = random_tensor(TensorSpec("c", tuple(stored.shape), stored.dtype, Codes(bits)), 0)
    values = layer._dequantize_weights().detach()
    # Every value but the lowest, evenly: the mean is 0 and the spread is the stated one.
    assert values.unique().tolist() == list(range(1 - 2 ** (bits - 1), 2 ** (bits - 1)))
    assert abs(float(values.mean())) < 0.02 * Codes(bits).std
    assert float(values.std()) == pytest.approx(Codes(bits).std, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"like": "27b"}, "no real model is called '27b'; known are 26b-a4b-assistant"),
        ({"tensors": "("}, "no regular expression"),
        ({"tensors": "nothing_like_it"}, "no tensor of 26b-a4b-assistant matches"),
        ({"seed": -1}, "the seed is -1"),
    ],
)
def test_wrong_arguments_are_usage_errors(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        write_random_checkpoint(**{"like": "26b-a4b-assistant", "out": tmp_path / "out", **arguments})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_random_checkpoint("26b-a4b-assistant", out, tensors="layer_scalar")
    (out / "old.txt").touch()
    with pytest.raises(UsageError, match="exists already"):
        write_random_checkpoint("26b-a4b-assistant", out, tensors="q_norm")
    assert (out / "old.txt").exists()
    write_random_checkpoint("26b-a4b-assistant", out, tensors="q_norm", force=True)
    assert not (out / "old.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_force_never_deletes_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    for name in ("home", "file", "link"):
        with pytest.raises(UsageError, match="no checkpoint folder"):
            write_random_checkpoint("26b-a4b-assistant", tmp_path / name, tensors="q_norm", force=True)
    assert (tmp_path / "home" / "letter.txt").exists()


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HycoError, match="cannot be written"):
        write_random_checkpoint("26b-a4b-assistant", tmp_path / "file" / "out", tensors="q_norm")

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(random_module, "save_file", full)
    with pytest.raises(HycoError, match="No space left"):
        write_random_checkpoint("26b-a4b-assistant", tmp_path / "out", tensors="q_norm")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_too_small_is_told_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**9}))
    with pytest.raises(HycoError, match=r"needs 50\.\d GB, 1\.0 GB are free"):
        write_random_checkpoint("26b-a4b", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
