"""Packing against ONNX's own packer, its DequantizeLinear in onnxruntime, and transformers' Gemma unpacker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from transformers.integrations import gemma_quant

from quant.errors import PackingError
from quant.packing import pack, pack_offset, unpack, unpack_offset

if TYPE_CHECKING:
    from collections.abc import Callable

ONNX_TYPES = {2: TensorProto.INT2, 4: TensorProto.INT4, 8: TensorProto.INT8}
ALL_PAIRS = [list(pair) for pair in itertools.product(range(-8, 8), repeat=2)]


def int8(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int8)


def onnx_bytes(values: np.ndarray, bits: int) -> bytes:
    """raw_data of ONNX's packer: make_tensor packs int32_data, a numpy_helper round trip proves the values."""
    tensor = onnx.helper.make_tensor("x", ONNX_TYPES[bits], [values.size], values.tolist())
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int8), values)
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data


@pytest.mark.parametrize(("codes", "expected"), [([1, 2], "21"), ([1, 2, 3], "2103"), ([-1, 7], "7f")])
def test_first_code_is_in_the_low_nibble(codes: list[int], expected: str) -> None:
    """Case 1, bytes measured on onnx 1.23."""
    assert pack(int8(codes), 4).numpy().tobytes().hex() == expected
    assert onnx_bytes(np.array(codes, dtype=np.int8), 4).hex() == expected


def test_all_256_pairs() -> None:
    """Case 2: against the formula and against ONNX."""
    for a, b in ALL_PAIRS:
        packed = pack(int8([a, b]), 4)
        assert packed.tolist() == [((b & 15) << 4) | (a & 15)]
        assert packed.numpy().tobytes() == onnx_bytes(np.array([a, b], dtype=np.int8), 4)
        assert unpack(packed, 4, 2).tolist() == [a, b]


def test_all_256_pairs_through_onnxruntime() -> None:
    """Case 2, "once through the exported .onnx": raw_data, DequantizeLinear of scale 1."""
    codes = int8(ALL_PAIRS)
    weight = onnx.helper.make_tensor("w", TensorProto.INT4, [256, 2], pack(codes, 4).numpy().tobytes(), raw=True)
    scale = onnx.helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    node = onnx.helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    output = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, 2])
    graph = onnx.helper.make_graph([node], "g", [], [output], [weight, scale])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {})[0], np.array(ALL_PAIRS, dtype=np.float32))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 33, 256])
def test_any_length_is_onnx_s_bytes_and_comes_back(bits: int, count: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), count).astype(np.int8)
    packed = pack(torch.from_numpy(values), bits)
    assert packed.numpy().tobytes() == onnx_bytes(values, bits)
    np.testing.assert_array_equal(unpack(packed, bits, count).numpy(), values)


def test_a_matrix_of_odd_width_is_packed_across_its_rows_as_onnx_does() -> None:
    values = np.arange(-7, 8, dtype=np.int8).reshape(5, 3)
    tensor = onnx.helper.make_tensor("x", TensorProto.INT4, [5, 3], values.flatten().tolist())
    expected = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data
    assert pack(torch.from_numpy(values), 4).numpy().tobytes() == expected
    assert pack(torch.from_numpy(values.copy()).T.contiguous().T, 4).numpy().tobytes() == expected


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("width", [8, 7, 5])
def test_offset_form_is_read_by_transformers(bits: int, width: int) -> None:
    rng = np.random.default_rng(width)
    codes = torch.from_numpy(rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (6, width)).astype(np.int8))
    packed = pack_offset(codes, bits)
    reader = gemma_quant._unpack_int4 if bits == 4 else gemma_quant._unpack_int2
    assert packed.dtype == torch.uint8
    assert packed.shape == (6, -(-width * bits // 8))
    assert torch.equal(reader(packed, width), codes)
    assert torch.equal(unpack_offset(packed, bits, width), codes)


def test_offset_form_by_hand() -> None:
    """Excess-8: code 15 means +7, code 0 means -8; read as two's complement both would flip."""
    assert pack_offset(int8([-8, 7]), 4).tolist() == [0xF0]
    assert unpack_offset(torch.tensor([0xF0], dtype=torch.uint8), 4, 2).tolist() == [-8, 7]
    assert unpack_offset(torch.tensor([0b11_10_01_00], dtype=torch.uint8), 2, 4).tolist() == [-2, -1, 0, 1]


def test_all_256_pairs_in_offset_form() -> None:
    """Case 2, unsigned storage: the zero point is 8, so code -8 is stored as 0 and +7 as 15."""
    for a, b in ALL_PAIRS:
        packed = pack_offset(int8([a, b]), 4)
        assert packed.tolist() == [(b + 8) << 4 | (a + 8)]
        assert unpack_offset(packed, 4, 2).tolist() == [a, b]


@pytest.mark.parametrize("function", [pack, pack_offset])
@pytest.mark.parametrize(("code", "bits"), [(8, 4), (-9, 4), (2, 2), (-3, 2)])
def test_a_code_that_does_not_fit_is_named(
    function: Callable[[torch.Tensor, int], torch.Tensor], code: int, bits: int
) -> None:
    with pytest.raises(PackingError, match=f"code {code} does not fit {bits} bits"):
        function(int8([0, code]), bits)


def test_other_refusals() -> None:
    with pytest.raises(PackingError, match="3 bits"):
        pack(int8([1]), 3)
    with pytest.raises(PackingError, match="8 bits"):
        pack_offset(int8([1]), 8)
    with pytest.raises(PackingError, match=r"int32"):
        pack(torch.ones(2, dtype=torch.int32), 4)
    with pytest.raises(PackingError, match="scalar"):
        pack(torch.tensor(1, dtype=torch.int8), 4)
    with pytest.raises(PackingError, match="take 2 bytes, but there are 1"):
        unpack(torch.zeros(1, dtype=torch.uint8), 4, 3)
    with pytest.raises(PackingError, match="take 1 bytes, but there are 2"):
        unpack_offset(torch.zeros(2, dtype=torch.uint8), 4, 2)
    with pytest.raises(PackingError, match="int8"):
        unpack(torch.zeros(1, dtype=torch.int8), 4, 2)
    with pytest.raises(PackingError, match="one dimension"):
        unpack(torch.zeros(1, 1, dtype=torch.uint8), 4, 2)
