"""An SLM's checkpoint against transformers' own loading of the same files: codes to the last bit, scales, floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Gemma4ForCausalLM, Gemma4ForConditionalGeneration
from transformers.integrations.gemma_quant import QuantizedEmbedding, QuantizedLinear, _unpack_int2, _unpack_int4

from export.checkpoint.slm import SlmCheckpoint, StoredWeight, read_slm_checkpoint
from export.errors import CheckpointError
from tests.export.checkpoint.builders import VOCAB_SIZE
from tests.export.checkpoint.slm_builders import (
    HIDDEN,
    LAYERS,
    OWNERS,
    PLE,
    UNCALIBRATED,
    prefix_of,
    shared_key_tensors,
    slm_config,
    write_slm,
)

if TYPE_CHECKING:
    from pathlib import Path

ALL_IDS = torch.arange(VOCAB_SIZE)
NESTED = "model.language_model."
GROUP_SCALE = f"{NESTED}embed_tokens_per_layer.embedding_scale"


@dataclass(frozen=True)
class Pair:
    """One checkpoint, read by us and loaded by transformers."""

    folder: Path
    ours: SlmCheckpoint
    model: Any
    prefix: str

    def module(self, name: str) -> Any:
        return self.model.get_submodule(name if name == "lm_head" else self.prefix + name)

    def linears(self) -> dict[str, Any]:
        named = self.model.named_modules()
        return {name.removeprefix(self.prefix): m for name, m in named if isinstance(m, nn.Linear)}


@pytest.fixture(scope="module", params=["nested", "flat"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    config = slm_config(nested=request.param == "nested")
    folder = write_slm(tmp_path_factory.mktemp("slm"), config)
    kind = Gemma4ForConditionalGeneration if request.param == "nested" else Gemma4ForCausalLM
    return Pair(
        folder, read_slm_checkpoint(folder), kind.from_pretrained(folder, dtype=torch.float32), prefix_of(config)
    )


def reference_codes(packed: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """transformers' unpacking, as its modules call it."""
    return {2: _unpack_int2, 4: _unpack_int4}[bits](packed, width) if bits < 8 else packed


def assert_same(found: StoredWeight, expected: StoredWeight) -> None:
    assert found.bits == expected.bits
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.scale, expected.scale)


def test_codes_and_weights_are_those_of_transformers(pair: Pair) -> None:
    widths = set()
    for name, module in pair.linears().items():
        if not isinstance(module, QuantizedLinear):
            assert (name, pair.ours.bits_of(name)) == ("per_layer_model_projection", None)
            continue
        found = pair.ours.weight(name)
        reference = reference_codes(module.weight, module.num_bits, module.in_features)
        assert (found.bits, found.codes.dtype, found.scale.dtype) == (module.num_bits, torch.int8, torch.float32), name
        assert torch.equal(found.codes, reference), name
        assert torch.equal(found.scale, module.weight_scale), name
        assert torch.equal(found.dequantize(), module._dequantize_weights()), name
        low, high = -(2 ** (found.bits - 1)), 2 ** (found.bits - 1) - 1
        assert low <= int(found.codes.min()) <= int(found.codes.max()) <= high
        widths.add(found.bits)
    assert widths == {2, 4, 8}


def test_floats_are_those_of_transformers(pair: Pair) -> None:
    found = 0
    for name, tensor in pair.model.state_dict().items():
        if tensor.is_floating_point() and not name.endswith("_scale"):
            ours = pair.ours.floats(name.removeprefix(pair.prefix))
            assert ours.dtype == tensor.dtype == torch.float32
            assert torch.equal(ours, tensor), name
            found += 1
    assert found == 6 * 7 + 3 + 3


def test_activation_scales_are_those_of_transformers(pair: Pair) -> None:
    for name, module in pair.linears().items():
        if isinstance(module, QuantizedLinear):
            expected = (module.input_activation_scale.item(), module.output_activation_scale.item())
            assert pair.ours.activation_scales(name) == tuple(scale or None for scale in expected), name
    assert pair.ours.activation_scales(UNCALIBRATED.rpartition(".")[0])[0] is None
    assert pair.ours.activation_scales("per_layer_model_projection") == (None, None)


def test_rows_of_the_tables_are_those_of_transformers(pair: Pair) -> None:
    ids = torch.tensor([63, 0, 17, 17])
    for name, read in (
        ("embed_tokens", pair.ours.embedding_rows),
        ("embed_tokens_per_layer", pair.ours.per_layer_rows),
    ):
        module = pair.module(name)
        assert isinstance(module, QuantizedEmbedding)
        codes = reference_codes(module.embedding_quantized[ids], module.num_bits, module.embedding_dim)
        found = read(ids)
        assert (found.bits, torch.equal(found.codes, codes)) == (module.num_bits, True)
        assert torch.equal(found.scale, module.embedding_scale[ids])
        assert torch.equal(read(ALL_IDS).dequantize(), module.weight)
        assert torch.equal(found.dequantize() * module.scalar_embed_scale, module(ids))
        assert read(ids[:0]).codes.shape == (0, codes.shape[1])


def test_the_per_layer_table_in_groups(tmp_path: Path) -> None:
    """The released form, a scale for each layer: transformers 5.24 sizes the parameter for one and refuses the file.

    Its arithmetic knows groups though, so its own module computes the reference once it is given the scales.
    """
    scales = torch.rand(VOCAB_SIZE, LAYERS) + 0.1
    folder = write_slm(tmp_path, **{GROUP_SCALE: scales})
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        Gemma4ForConditionalGeneration.from_pretrained(folder)
    ours = read_slm_checkpoint(folder)
    module = QuantizedEmbedding(VOCAB_SIZE, LAYERS * PLE, torch.float32, PLE**0.5, num_bits=4)
    packed = ours.reader.load(f"{NESTED}embed_tokens_per_layer.embedding_quantized")
    module.embedding_quantized = nn.Parameter(packed, requires_grad=False)
    module.embedding_scale = nn.Parameter(scales)
    ids = torch.tensor([5, 63, 0])
    found = ours.per_layer_rows(ids)
    assert torch.equal(found.codes, _unpack_int4(packed[ids], LAYERS * PLE))
    assert torch.equal(found.scale, scales[ids])
    assert torch.equal(found.dequantize() * PLE**0.5, module(ids))


def test_outputs_can_be_read_in_part(pair: Pair) -> None:
    whole = pair.ours.weight("lm_head")
    rows = torch.tensor([60, 3, 4])
    assert_same(pair.ours.weight("lm_head", rows), StoredWeight(whole.codes[rows], whole.scale[rows], whole.bits))


def test_long_weights_are_put_together_from_chunks(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pair.ours.weight("lm_head")
    monkeypatch.setattr("export.checkpoint.slm._CHUNK_ROWS", 7)
    assert_same(pair.ours.weight("lm_head"), whole)


def test_keys_of_sharing_layers_may_be_there_or_not(tmp_path: Path) -> None:
    without = read_slm_checkpoint(write_slm(tmp_path / "without"))
    extra = shared_key_tensors(NESTED)
    assert len(extra) == 3 * 12
    stored = read_slm_checkpoint(write_slm(tmp_path / "with", **extra))
    assert without.config == stored.config
    for layer in range(LAYERS):
        for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"):
            assert_same(stored.weight(f"layers.{layer}.{name}"), without.weight(f"layers.{layer}.{name}"))
        assert stored.cache_scales(layer) == without.cache_scales(layer)
    logits = [
        AutoModelForCausalLM.from_pretrained(c.reader.folder)(ALL_IDS[None, :9]).logits for c in (without, stored)
    ]
    assert torch.equal(*logits)
    with pytest.raises(CheckpointError, match=r"has no linear layer 'layers\.3\.self_attn\.k_proj'"):
        stored.weight("layers.3.self_attn.k_proj")


def test_a_sharing_layer_reads_its_owners_cache_scales(pair: Pair) -> None:
    assert tuple(layer.owner for layer in pair.ours.config.layers) == OWNERS
    for layer, owner in enumerate(OWNERS):
        expected = tuple(torch.tensor(base + owner).item() for base in (0.2, 0.3))
        assert pair.ours.cache_scales(layer) == expected


def test_cache_scales_may_have_one_element(tmp_path: Path) -> None:
    folder = write_slm(tmp_path, **{f"{NESTED}layers.1.self_attn.k_cache_scale": torch.tensor([0.5])})
    assert read_slm_checkpoint(folder).cache_scales(4) == (0.5, torch.tensor(1.3).item())


def test_tensors_of_other_senses_are_skipped(tmp_path: Path) -> None:
    others = ("vision_tower.encoder.layers.0.mlp.up_proj.weight", "audio_tower.x", "embed_vision.y", "embed_audio.z")
    tensors = {f"model.{name}": torch.ones(2) for name in others}
    assert read_slm_checkpoint(write_slm(tmp_path, **tensors)).config.hidden_size == HIDDEN


@pytest.mark.parametrize("read", ["embedding_rows", "per_layer_rows"])
@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([3, -1]), "token id -1 does not exist; they are 0..63"),
        (torch.tensor([64, 3]), "token id 64 does not exist"),
        (torch.tensor([2**40]), f"token id {2**40} does not exist"),
        (torch.tensor([1.0]), r"token ids are torch.float32 \[1\]; int64 \[n\] is needed"),
        (torch.tensor([True, False]), r"token ids are torch.bool"),
        (torch.tensor(3), r"token ids are torch.int64 \[\]"),
    ],
)
def test_ids_outside_a_table_never_wrap(pair: Pair, read: str, ids: torch.Tensor, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        getattr(pair.ours, read)(ids)


def test_each_table_has_its_own_end(tmp_path: Path) -> None:
    ours = read_slm_checkpoint(write_slm(tmp_path, slm_config({"vocab_size_per_layer_input": 48})))
    assert ours.embedding_rows(torch.tensor([63])).codes.shape == (1, HIDDEN)
    with pytest.raises(CheckpointError, match="embed_tokens_per_layer token id 48 does not exist"):
        ours.per_layer_rows(torch.tensor([48]))


def test_what_does_not_exist_is_named(pair: Pair) -> None:
    ours = pair.ours
    for layer in (-1, LAYERS):
        with pytest.raises(CheckpointError, match=rf"has layers 0\.\.5, not {layer}"):
            ours.cache_scales(layer)
    for call in (ours.weight, ours.activation_scales, ours.bits_of):
        with pytest.raises(CheckpointError, match=r"has no linear layer 'layers\.6\.mlp\.up_proj'"):
            call("layers.6.mlp.up_proj")
    with pytest.raises(CheckpointError, match="'per_layer_model_projection' is not quantised"):
        ours.weight("per_layer_model_projection")
    with pytest.raises(CheckpointError, match="row 64 does not exist"):
        ours.weight("lm_head", torch.tensor([64]))
    for name in ("lm_head.weight", "lm_head", "norm", "layers.0.self_attn.v_norm.weight", "per_layer_model_projection"):
        with pytest.raises(CheckpointError, match=f"has no unquantised tensor '{name}'"):
            ours.floats(name)


@pytest.mark.parametrize(
    ("name", "value", "read", "words"),
    [
        (
            "layers.2.self_attn.k_cache_scale",
            0.0,
            lambda c: c.cache_scales(5),
            "k_cache_scale' is 0: its cache was not",
        ),
        ("layers.1.self_attn.v_cache_scale", -0.1, lambda c: c.cache_scales(1), "v_cache_scale' is -0.1"),
        ("layers.1.self_attn.v_cache_scale", float("nan"), lambda c: c.cache_scales(1), "v_cache_scale' is nan"),
        ("lm_head.output_activation_scale", float("inf"), lambda c: c.activation_scales("lm_head"), "scale' is inf"),
        ("lm_head.input_activation_scale", -1.0, lambda c: c.activation_scales("lm_head"), "scale' is -1.0"),
        ("lm_head.weight_scale", float("nan"), lambda c: c.weight("lm_head"), "lm_head.weight_scale' holds NaN"),
        ("norm.weight", float("nan"), lambda c: c.floats("norm.weight"), "norm.weight' holds NaN"),
        ("embed_tokens.embedding_scale", float("inf"), lambda c: c.embedding_rows(ALL_IDS), "holds NaN or infinite"),
    ],
)
def test_values_that_are_no_scales_are_refused(tmp_path: Path, name: str, value: float, read: Any, words: str) -> None:
    full = name if name.startswith("lm_head") else NESTED + name
    original = read_slm_checkpoint(write_slm(tmp_path)).reader.load(full)
    ours = read_slm_checkpoint(write_slm(tmp_path, **{full: torch.full_like(original, value)}))
    with pytest.raises(CheckpointError, match=words) as caught:
        read(ours)
    assert str(tmp_path) in str(caught.value)
