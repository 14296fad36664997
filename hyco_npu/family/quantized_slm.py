"""The SLM in the `quant_method: gemma` format: its bit map, and its codes and scales from quantisation-aware training.

What is stored is what the training's forward computed with, to the last bit of the codes. Source: transformers'
integrations/gemma_quant.py. Knows nothing of how the scales were learned.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from export.checkpoint.config import CONFIG_FILE
from export.checkpoint.gemma_bits import QUANT_METHOD, BitMap, read_bit_map
from hyco_npu.family.qat import CACHES, FakeQuantEmbedding, FakeQuantLinear
from hyco_npu.family.real_models import BIT_WIDTHS
from quant.affine import quantize
from quant.packing import pack_offset
from quant.weights import symmetric_params

if TYPE_CHECKING:
    from torch import nn
    from transformers import Gemma4ForCausalLM

    from quant.dtypes import IntegerType

BITS = {pattern.replace(r"(\d|1[0-4])", "[0-2]"): bits for pattern, bits in BIT_WIDTHS.items()}
"""Module-name regex -> bits: E2B's, for three layers that own their keys and values instead of its fifteen."""
_UNQUANTISED = "per_layer_model_projection"


def quantization_config() -> dict[str, Any]:
    """The `quantization_config` of config.json. `modules_to_not_convert` must be there, else lm_head is left out."""
    return {
        "quant_method": QUANT_METHOD,
        "quantize_embeddings": True,
        "module_quant_configs": {pattern: {"num_bits": bits} for pattern, bits in BITS.items()},
        "modules_to_not_convert": [_UNQUANTISED],
    }


def bit_map() -> BitMap:
    """BITS as the reader of checkpoints resolves them."""
    return read_bit_map(Path(), {"quantization_config": quantization_config()})


def save_quantized(model: Gemma4ForCausalLM, folder: Path) -> None:
    """Write a model from `make_quantization_aware` into the new `folder`: config, generation config, weights."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    _write_config(model, temporary)
    model.generation_config.save_pretrained(temporary)
    save_file(stored_tensors(model), temporary / "model.safetensors", metadata={"format": "pt"})
    os.replace(temporary, folder)


def stored_tensors(model: Gemma4ForCausalLM) -> dict[str, torch.Tensor]:
    """Every tensor of the format by name: packed codes, float32 scales, the rest in bf16."""
    tensors: dict[str, torch.Tensor] = {}
    coded = set()
    for name, module in model.named_modules():
        tensors |= {f"{name}.{key}": tensor for key, tensor in _stored_form(module).items()}
        if isinstance(module, FakeQuantLinear | FakeQuantEmbedding):
            coded.add(name)
    for name, tensor in model.state_dict().items():
        module_name, _, key = name.rpartition(".")
        if module_name not in coded and not key.startswith("log_"):
            tensors[name] = tensor.bfloat16()
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _stored_form(module: nn.Module) -> dict[str, torch.Tensor]:
    """What stands in the file for the float weight and the learned scales of one module."""
    if isinstance(module, FakeQuantLinear):
        return _linear_tensors(module)
    if isinstance(module, FakeQuantEmbedding):
        codes, scale = _codes(module.weight, module.log_weight_scale, module.dtype)
        return {"embedding_quantized": codes, "embedding_scale": scale}
    learned = {cache: getattr(module, f"log_{cache}_cache_scale", None) for cache in CACHES}
    return {f"{cache}_cache_scale": scale.exp() for cache, scale in learned.items() if scale is not None}


def _write_config(model: Gemma4ForCausalLM, folder: Path) -> None:
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    path = folder / CONFIG_FILE
    # transformers would sort the patterns, and a reader that takes the first match needs them in BITS' order.
    content = json.loads(path.read_text(encoding="utf-8")) | {"quantization_config": quantization_config()}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _linear_tensors(module: FakeQuantLinear) -> dict[str, torch.Tensor]:
    codes, scale = _codes(module.weight, module.log_weight_scale, module.dtype)
    output = module.log_output_scale
    return {
        "weight": codes,
        "weight_scale": scale,
        "input_activation_scale": module.log_input_scale.exp(),
        "output_activation_scale": torch.zeros(()) if output is None else output.exp(),
    }


def _codes(weight: torch.Tensor, log_scale: torch.Tensor, dtype: IntegerType) -> tuple[torch.Tensor, torch.Tensor]:
    """Stored codes and scale [rows, 1] of `weight` [rows, width]."""
    scale = log_scale.detach().exp()[:, None]
    codes = quantize(weight.detach(), symmetric_params(scale, dtype)).to(torch.int8)
    return codes if dtype.bits == 8 else pack_offset(codes, dtype.bits), scale
