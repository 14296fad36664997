"""Codes and scales that come with a checkpoint: the file `quantized/weight_codes.safetensors`.

Quantisation-aware training writes it, so that export stores the very codes that were trained. `<weight>.codes` holds
packed codes (quant.packing.pack, in 2, 4 or 8 bits each), `<weight>.scale` one float32 a row; weights are called as in
the static module. The metadata says how many bits a code has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from export.errors import CheckpointError
from quant.dtypes import IntegerType
from quant.packing import pack, unpack
from quant.weights import QuantizedWeight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

# In a folder of its own: every .safetensors beside the weights is taken for a shard of them, by us and by transformers.
WEIGHT_CODES_FILE = "quantized/weight_codes.safetensors"
_FORMAT = "hyco-npu.weight-codes.1"


def save_weight_codes(folder: Path, weights: Mapping[str, QuantizedWeight]) -> None:
    """Write `weights`, all of one type, into `folder`."""
    dtype = next(iter(weights.values())).dtype
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        tensors[f"{name}.codes"] = pack(weight.codes, _container(dtype.bits))
        tensors[f"{name}.scale"] = weight.scale.contiguous()
    path = folder / WEIGHT_CODES_FILE
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    # One entry: safetensors writes several in an order that changes from run to run.
    save_file(tensors, temporary, metadata={"format": f"{_FORMAT} int{dtype.bits}"})
    temporary.chmod(0o644)  # safetensors writes 0600
    os.replace(temporary, path)


def read_weight_codes(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, QuantizedWeight] | None:
    """The codes that come with the checkpoint at `folder`, for the weights in `shapes` (name -> [out, in]).

    None where the file is absent. Raises CheckpointError for a file of another form or of other weights.
    """
    path = folder / WEIGHT_CODES_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error}); train again") from error
    form, _, bits = metadata.get("format", "").partition(" int")
    if form != _FORMAT or bits not in ("2", "3", "4", "8"):
        raise CheckpointError(f"{path}: metadata {metadata} is not that of weight codes; train again")
    expected = {f"{name}.{part}" for name in shapes for part in ("codes", "scale")}
    if different := sorted(expected ^ tensors.keys()):
        raise CheckpointError(f"{path}: {different[0]!r} is missing or does not belong here; the checkpoint is mixed")
    dtype = IntegerType(f"int{bits}", int(bits), signed=True)
    return {name: _weight(path, name, tensors, shape, dtype) for name, shape in shapes.items()}


def _weight(
    path: Path, name: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, ...], dtype: IntegerType
) -> QuantizedWeight:
    rows, columns = shape
    packed, scale, width = tensors[f"{name}.codes"], tensors[f"{name}.scale"], _container(dtype.bits)
    if packed.numel() != (rows * columns * width + 7) // 8 or scale.shape != (rows, 1):
        raise CheckpointError(
            f"{path}: {name!r} has {packed.numel()} bytes of codes and scales {list(scale.shape)}, which do not fit "
            f"[{rows}, {columns}] at {dtype.bits} bits"
        )
    return QuantizedWeight(unpack(packed, width, rows * columns).view(rows, columns), scale, dtype)


def _container(bits: int) -> int:
    """Bits that one code takes in the file: three have no packing of their own."""
    return 4 if bits == 3 else bits
