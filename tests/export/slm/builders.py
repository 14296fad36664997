"""Tiny SLM checkpoints in every layout, with scales that fit their contents, and what transformers reads in them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from safetensors.torch import load_file, save_file
from transformers import Gemma4ForCausalLM
from transformers.integrations.gemma_quant import QuantizedLinear, _unpack_int2, _unpack_int4

from ..checkpoint.slm_builders import (
    LAYERS,
    UNCALIBRATED,
    prefix_of,
    replaced_model,
    shared_key_tensors,
    slm_config,
    slm_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VOCAB_SIZE, PER_LAYER_VOCAB_SIZE = 320, 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "vocab_size_per_layer_input": PER_LAYER_VOCAB_SIZE,
    "hidden_size": 32,
    "rms_norm_eps": 1e-3,
    "final_logit_softcapping": 5.0,
}
KEEP = np.sort(np.random.default_rng(7).choice(PER_LAYER_VOCAB_SIZE, 290, replace=False))
CACHE_SCALES = {owner: (0.018 + 0.001 * owner, 0.024 + 0.001 * owner) for owner in range(3)}
"""Keys reach 2.3 and more, values 3: few saturate."""
MAX_COLUMNS = 256
"""Tests cut output layers into chunks of so many columns, so that small ones have several."""
_SHARE = 0.97
_CODE_SPREAD = {2: 1.1, 4: 4.6, 8: 74.0}
_PLAIN = "model."


def text(length: int, seed: int = 3) -> list[int]:
    """Random tokens that both tables have."""
    return [int(token) for token in np.random.default_rng(seed).integers(PER_LAYER_VOCAB_SIZE, size=length)]


def write_tiny(folder: Path, nested: bool, grouped: bool, shared: bool) -> Path:
    """Write one checkpoint; the codes are random bytes, the same in every layout.

    Clips bind on 3 of 100 values. `grouped`: the per-layer table has a scale for each row and layer. `shared`: keys and
    values of sharing layers are there, as in the released E2B.
    """
    config = slm_config(SIZES, nested=nested)
    tensors = _plain_tensors(folder / "plain")
    if grouped:
        name = f"{_PLAIN}embed_tokens_per_layer.embedding_scale"
        tensors[name] = _random((PER_LAYER_VOCAB_SIZE, LAYERS), 11) * 0.05
    prefix = prefix_of(config)
    tensors = {name.replace(_PLAIN, prefix, 1): tensor for name, tensor in tensors.items()}
    _write(folder, config, tensors | (shared_key_tensors(prefix) if shared else {}))
    return folder


def transformers_linears(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Module -> codes int8 [out, in] and scales [out], unpacked by transformers' own functions."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    found = {}
    for name, module in replaced_model(config).named_modules():
        if isinstance(module, QuantizedLinear):
            packed, width = tensors[f"{name}.weight"], module.in_features
            unpack: Any = {2: _unpack_int2, 4: _unpack_int4, 8: lambda codes, _: codes}[module.num_bits]
            codes, scale = unpack(packed, width), tensors[f"{name}.weight_scale"]
            found[name.removeprefix(prefix_of(config))] = (codes.numpy(), scale[:, 0].numpy())
    return found


@dataclass(frozen=True)
class Stored:
    """A weight in a saved graph: codes int8 [out, in], a scale for each output, and ONNX's type of the codes."""

    codes: np.ndarray
    scale: np.ndarray
    data_type: int


def stored_weights(path: Path) -> dict[str, Stored]:
    """Weight name -> what the file of a graph and its external data hold; zero points are 0, or the middle code."""
    model = onnx.load(str(path))
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    made = {output: node for node in model.graph.node for output in node.output}
    found = {}
    for node in model.graph.node:
        source = made.get(node.input[1]) if node.op_type == "MatMul" else None
        if node.op_type == "MatMulNBits":
            name = node.input[1]
            found[name.removesuffix(".codes")] = _stored_nbits(node, arrays[name], arrays[node.input[2]], types[name])
        elif source is not None and source.op_type == "DequantizeLinear" and source.input[0] in arrays:
            name, scale, zero = source.input
            assert not arrays[zero].astype(np.int8).any()
            assert [attribute.i for attribute in source.attribute if attribute.name == "axis"] == [1]
            codes = arrays[name].astype(np.int8).T
            found[name.removesuffix(".codes")] = Stored(codes, arrays[scale], types[name])
    return found


def _stored_nbits(node: onnx.NodeProto, packed: np.ndarray, scale: np.ndarray, data_type: int) -> Stored:
    """The operator's own definition: block by block, the first code in the low bits, the zero point 2 by default."""
    settings = {attribute.name: attribute.i for attribute in node.attribute}
    rows, columns, block = settings["N"], settings["K"], settings["block_size"]
    assert settings["bits"] == 2
    assert len(node.input) == 3
    assert packed.shape == (rows, columns // block, block // 4)
    codes = np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1).reshape(rows, columns)
    by_block = scale.reshape(rows, columns // block)
    assert (by_block == by_block[:, :1]).all()
    return Stored(codes.astype(np.int8) - 2, by_block[:, 0], data_type)


def check_codes(folder: Path, graph: Path, keep: np.ndarray, two_bit: str, last_owner: int | None) -> None:
    """Every quantised linear layer of the checkpoint has its codes and scales in the saved graph.

    `last_owner` is None for the draft graph; a prefill graph has all of the layers below, and that one's keys and
    values.
    """
    wanted = transformers_linears(folder)
    if last_owner is not None:
        own = [f"layers.{last_owner}.self_attn.{part}_proj" for part in "kv"]
        below = tuple(f"layers.{layer}." for layer in range(last_owner))
        wanted = {module: codes for module, codes in wanted.items() if module.startswith(below) or module in own}
    stored = stored_weights(graph)
    floats = stored.pop("per_layer_model_projection.weight")
    assert floats.data_type == TensorProto.INT8
    heads = [stored.pop(name) for name in sorted(n for n in stored if n.startswith("lm_head"))]
    assert stored.keys() == {f"{module}.weight" for module in wanted if module != "lm_head"}
    for name, weight in stored.items():
        codes, scale = wanted[name.removesuffix(".weight")]
        np.testing.assert_array_equal(weight.codes, codes, err_msg=name)
        np.testing.assert_array_equal(weight.scale, scale, err_msg=name)
        two = codes.max() <= 1 and codes.min() >= -2
        assert (weight.data_type == TensorProto.UINT8) == (two and two_bit == "nbits"), name
    if last_owner is None:
        np.testing.assert_array_equal(np.concatenate([w.codes for w in heads]), wanted["lm_head"][0][keep])
        np.testing.assert_array_equal(np.concatenate([w.scale for w in heads]), wanted["lm_head"][1][keep])
        assert all(len(w.codes) <= MAX_COLUMNS for w in heads)
        assert len(heads) == -(-len(keep) // MAX_COLUMNS)
    else:
        assert heads == []
    two_bit_types = {TensorProto.INT2, TensorProto.UINT2}
    model = onnx.load(str(graph), load_external_data=False).graph
    assert not two_bit_types & {tensor.data_type for tensor in model.initializer}
    assert not two_bit_types & {value.type.tensor_type.elem_type for value in model.value_info}


def _plain_tensors(folder: Path) -> dict[str, torch.Tensor]:
    config = slm_config(SIZES, nested=False)
    tensors = slm_tensors(config)
    for name, module in replaced_model(config).named_modules():
        if isinstance(module, QuantizedLinear):
            unit = 1 / (_CODE_SPREAD[module.num_bits] * module.in_features**0.5)
            gain = 6.0 if name == "lm_head" else 1.0
            tensors[f"{name}.weight_scale"] = _random((module.out_features, 1), len(name)) * unit * gain
            for scale in ("input", "output"):
                tensors[f"{name}.{scale}_activation_scale"] = torch.tensor(0.0)
    tensors[f"{_PLAIN}embed_tokens.embedding_scale"] = _random((VOCAB_SIZE, 1), 1) * 0.2
    tensors[f"{_PLAIN}embed_tokens_per_layer.embedding_scale"] = _random((PER_LAYER_VOCAB_SIZE, 1), 2) * 0.05
    for owner, scales in CACHE_SCALES.items():
        for kind, cache_scale in zip("kv", scales, strict=True):
            tensors[f"{_PLAIN}layers.{owner}.self_attn.{kind}_cache_scale"] = torch.tensor(cache_scale)
    _write(folder, config, tensors)
    return tensors | _activation_scales(folder)


def _random(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Uniform in 0.7..1.3."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.6 + 0.7


def _activation_scales(folder: Path) -> dict[str, torch.Tensor]:
    """Clips at the size that 97 of 100 values stay under; those of queries are wider than those of keys and values."""
    model: Any = Gemma4ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    seen: dict[str, list[torch.Tensor]] = defaultdict(list)

    def watch(name: str) -> Any:
        def hook(_: Any, inputs: Sequence[torch.Tensor], output: torch.Tensor) -> None:
            seen[f"{name}.input_activation_scale"].append(inputs[0].abs().flatten())
            seen[f"{name}.output_activation_scale"].append(output.abs().flatten())

        return hook

    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear):
            module.register_forward_hook(watch(name))
    with torch.no_grad():
        for seed in (21, 22):
            model(torch.tensor([text(40, seed)]), use_cache=False)
    scales = {
        name: torch.cat(values).quantile(_SHARE) / 127 * (1.1 if "q_proj" in name else 1.0)
        for name, values in seen.items()
    }
    return scales | {_PLAIN + UNCALIBRATED: torch.tensor(0.0)}


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
