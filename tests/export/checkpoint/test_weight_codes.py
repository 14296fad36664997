"""Codes beside a checkpoint: what was written comes back, and a file of something else is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint.weight_codes import WEIGHT_CODES_FILE, read_weight_codes, save_weight_codes
from export.errors import CheckpointError
from quant.dtypes import IntegerType
from quant.weights import QuantizedWeight

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = {"a.weight": (3, 5), "b.weight": (2, 4)}


def weights(bits: int) -> dict[str, QuantizedWeight]:
    dtype = IntegerType(f"int{bits}", bits, signed=True)
    made = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        generator = torch.Generator().manual_seed(seed)
        codes = torch.randint(dtype.qmin, dtype.qmax + 1, shape, generator=generator).to(torch.int8)
        made[name] = QuantizedWeight(codes, torch.rand(shape[0], 1, generator=generator) + 0.1, dtype)
    return made


@pytest.mark.parametrize(("bits", "size"), [(2, 4 + 2), (3, 8 + 4), (4, 8 + 4), (8, 15 + 8)])
def test_round_trip(tmp_path: Path, bits: int, size: int) -> None:
    save_weight_codes(tmp_path, weights(bits))
    stored = load_file(tmp_path / WEIGHT_CODES_FILE)
    assert sum(tensor.numel() for name, tensor in stored.items() if name.endswith(".codes")) == size
    found = read_weight_codes(tmp_path, SHAPES)
    assert found is not None
    for name, weight in weights(bits).items():
        assert torch.equal(found[name].codes, weight.codes)
        assert torch.equal(found[name].scale, weight.scale)
        assert found[name].dtype == weight.dtype


def test_no_file_is_none(tmp_path: Path) -> None:
    assert read_weight_codes(tmp_path, SHAPES) is None


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_weight_codes(tmp_path, weights(4))
    path = tmp_path / WEIGHT_CODES_FILE
    with pytest.raises(CheckpointError, match=r"c\.weight\.codes"):
        read_weight_codes(tmp_path, SHAPES | {"c.weight": (1, 1)})
    with pytest.raises(CheckpointError, match="do not fit"):
        read_weight_codes(tmp_path, SHAPES | {"b.weight": (4, 4)})
    save_file(load_file(path), path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="metadata"):
        read_weight_codes(tmp_path, SHAPES)
    path.write_bytes(b"no")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_weight_codes(tmp_path, SHAPES)
