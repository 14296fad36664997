"""Rows of the CPU's tables and codes of a boundary against Python, bit for bit."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from export.checkpoint.mtp import RopeSpec
from export.engines.graph_io import BoundaryTensor
from export.graphs.rope import inverse_frequencies, signed_rotation
from quant.packed_table import PackedTable
from quant.packing import pack_offset
from quant.table import build_table

from .conftest import RefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Native

pytestmark = pytest.mark.native


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def packed_table(bits: int, rows: int, width: int, groups: int) -> PackedTable:
    rng = np.random.default_rng(bits)
    limit = 1 << (bits - 1)
    codes = torch.from_numpy(rng.integers(-limit, limit, (rows, width)).astype(np.int8))
    scale = rng.uniform(0.001, 0.1, (rows, groups)).astype(np.float32)
    return PackedTable((codes if bits == 8 else pack_offset(codes, bits)).numpy(), scale, bits, width, 1536**0.5)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("width", "groups"), [(40, 1), (42, 7), (9, 3)])
def test_packed_rows(native: Native, tmp_path: Path, bits: int, width: int, groups: int) -> None:
    table = packed_table(bits, 30, width, groups)
    path, ids = tmp_path / "table.safetensors", np.array([3, 0, 29, 3])
    table.save(path)
    found = native.probe("table", kind="packed", path=str(path), ids=ids.tolist())
    assert found == digest(table.lookup(ids))


def test_embedding_rows(native: Native, tmp_path: Path) -> None:
    token_ids = torch.tensor([2, 5, 9, 70])
    table = build_table([(token_ids, torch.randn(4, 33))])
    path = tmp_path / "table.safetensors"
    table.save(path)
    found = native.probe("table", kind="embedding", path=str(path), ids=[70, 2, 9])
    assert found == digest(table.lookup_many(torch.tensor([70, 2, 9])).numpy())


@pytest.mark.parametrize(("kind", "id"), [("packed", 30), ("packed", -1), ("embedding", 3), ("embedding", 71)])
def test_an_unknown_id_is_named(native: Native, tmp_path: Path, kind: str, id: int) -> None:
    path = tmp_path / "table.safetensors"
    if kind == "packed":
        packed_table(4, 30, 8, 1).save(path)
    else:
        build_table([(torch.tensor([2, 5, 70]), torch.randn(3, 8))]).save(path)
    with pytest.raises(RefusedError, match=f"token id {id} is not"):
        native.probe("table", kind=kind, path=str(path), ids=[id])


@pytest.mark.parametrize("damage", ["kind", "short", "header", "length"])
def test_a_damaged_table_is_refused(native: Native, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "table.safetensors"
    packed_table(4, 30, 8, 1).save(path)
    content = path.read_bytes()
    damaged = {
        "kind": content.replace(b"packed_table", b"packed_tible"),
        "short": content[:-5],
        "header": content.replace(b'"dtype"', b'"dtipe"'),
        "length": (2**62).to_bytes(8, "little") + content[8:],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(RefusedError, match=r"table\.safetensors"):
        native.probe("table", kind="packed", path=str(path), ids=[0])


@pytest.mark.parametrize(
    ("dtype", "zero_point"), [("uint16", 32768), ("uint16", 12), ("int16", 0), ("int8", 0), ("uint8", 77)]
)
def test_codes_round_half_to_even_and_saturate(native: Native, dtype: str, zero_point: int) -> None:
    scale = 2.0**-9
    halves = (np.arange(-600, 600) + 0.5) * scale
    # scales that are no power of two make quotients that are no numbers of float32
    values = np.concatenate([halves, np.random.default_rng(0).normal(0, 60, 5000), [1e9, -1e9, np.inf, -np.inf, 0.0]])
    for this in (scale, 0.0137):
        tensor = BoundaryTensor("x", dtype, values.shape, this, zero_point)
        codes = tensor.encode(values)
        found = native.probe(
            "encode", {"values": values.astype(np.float32)}, dtype=dtype, scale=this, zero_point=zero_point
        )
        assert found == [digest(codes), digest(tensor.decode(codes))]


def test_nan_has_no_code(native: Native) -> None:
    with pytest.raises(RefusedError, match="NaN"):
        native.probe("encode", {"values": np.array([0.0, np.nan], np.float32)}, dtype="uint16", scale=1.0, zero_point=0)


@pytest.mark.parametrize(("rope_type", "factor"), [("default", 1.0), ("proportional", 0.25)])
def test_rotations(native: Native, rope_type: str, factor: float) -> None:
    rope = RopeSpec("full_attention", 1_000_000.0, rope_type, factor)
    positions = [0, 1, 77, 1000, 30000]
    found = native.probe(
        "rotation",
        theta=rope.theta,
        proportional=rope_type == "proportional",
        partial_rotary_factor=factor,
        dim=64,
        positions=positions,
    )
    for position, (cos, sin) in zip(positions, found, strict=True):
        wanted = signed_rotation(inverse_frequencies(rope, 64), position)
        # an angle is off by a rounding of its frequency, cos and sin by one of their own
        tolerance = 2.0**-22 * max(1.0, position)
        np.testing.assert_allclose(cos, wanted[0].ravel(), atol=tolerance, rtol=0)
        np.testing.assert_allclose(sin, wanted[1].ravel(), atol=tolerance, rtol=0)
