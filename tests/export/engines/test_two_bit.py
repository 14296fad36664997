"""2-bit storage: what is narrowed, that nothing it computes changes, and what is refused."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.engines.cpu import cpu_session
from export.engines.htp import TARGETS, CompiledGraph, compile_graph, simulator_session
from export.engines.two_bit import TwoBitStorage, _fits_two_bits, _Quantization, _slot, _Tensor
from export.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path

ROWS, INPUTS, OUTPUTS = 8, 512, 2048
TARGET = TARGETS["sm8850"]


def weights() -> dict[str, np.ndarray]:
    """INT4 codes [in, out]: one matrix of 2-bit codes, one with a single code outside, one with all 16."""
    rng = np.random.default_rng(0)
    # Drawn apart: the compiler stores equal pieces of different weights once.
    narrow, almost = (rng.integers(-2, 2, (INPUTS, OUTPUTS)) for _ in range(2))
    almost[17, 3] = 2
    return {"narrow": narrow, "almost": almost, "wide": rng.integers(-8, 8, (INPUTS, OUTPUTS))}


def write_model(path: Path) -> Path:
    """Three products of one uint16 input with the three weights, one uint16 output each."""
    nodes = [helper.make_node("DequantizeLinear", ["x", "x.scale", "x.zero"], ["x.dq"], name="x.dq")]
    initializers = [
        numpy_helper.from_array(np.float32(1e-4), "x.scale"),
        numpy_helper.from_array(np.uint16(32768), "x.zero"),
        numpy_helper.from_array(np.float32(2e-3), "y.scale"),
        numpy_helper.from_array(np.uint16(32768), "y.zero"),
    ]
    for name, codes in weights().items():
        scale = np.linspace(0.01, 0.02, OUTPUTS, dtype=np.float32)
        initializers += [
            numpy_helper.from_array(codes.astype(ml_dtypes.int4), f"{name}.codes"),
            numpy_helper.from_array(scale, f"{name}.scale"),
            numpy_helper.from_array(np.zeros(OUTPUTS, ml_dtypes.int4), f"{name}.zero"),
        ]
        parts = [f"{name}.codes", f"{name}.scale", f"{name}.zero"]
        nodes += [
            helper.make_node("DequantizeLinear", parts, [f"{name}.dq"], axis=1, name=f"{name}.dq"),
            helper.make_node("MatMul", ["x.dq", f"{name}.dq"], [f"{name}.y"], name=f"{name}.y"),
            helper.make_node("QuantizeLinear", [f"{name}.y", "y.scale", "y.zero"], [name], name=f"{name}.q"),
        ]
    shape = [1, 1, ROWS]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT16, [*shape, INPUTS])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UINT16, [*shape, OUTPUTS]) for name in weights()]
    graph = helper.make_graph(nodes, "three", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompiledGraph, CompiledGraph]:
    """The model, compiled without and with 2-bit storage."""
    folder = tmp_path_factory.mktemp("two_bit")
    model = write_model(folder / "model.onnx")
    plain = compile_graph(model, folder / "plain.onnx", TARGET)
    return model, plain, compile_graph(model, folder / "narrow.onnx", TARGET, two_bit=True)


@pytest.mark.htp
def test_only_weights_whose_codes_fit_are_narrowed(compiled: tuple[Path, CompiledGraph, CompiledGraph]) -> None:
    _, plain, narrow = compiled
    assert plain.two_bit_weights == frozenset()
    assert narrow.two_bit_weights == {"narrow.codes"}
    # 512 x 2048 codes at 2 bits less; the binary is laid out in pages.
    saved = plain.binary.stat().st_size - narrow.binary.stat().st_size
    assert saved == pytest.approx(INPUTS * OUTPUTS * 2 / 8, rel=0.3)


@pytest.mark.htp
def test_the_graph_computes_the_same_without_the_wrapper(compiled: tuple[Path, CompiledGraph, CompiledGraph]) -> None:
    model, plain, narrow = compiled
    feed = {"x": np.random.default_rng(1).integers(0, 65536, (1, 1, ROWS, INPUTS)).astype(np.uint16)}
    results = [simulator_session(one.context, TARGET).run(list(weights()), feed) for one in (plain, narrow)]
    for ours, wanted in zip(results[1], results[0], strict=True):
        np.testing.assert_array_equal(ours, wanted)
    on_cpu = cpu_session(model).run(list(weights()), feed)
    for ours, wanted in zip(results[1], on_cpu, strict=True):
        assert np.abs(ours.astype(int) - wanted).max() <= 8  # of codes that span thousands
        assert wanted.std() > 100


def tensor(codes: np.ndarray, bits: int = 4, kind: int = 4, encoding: int = 3) -> _Tensor:
    made = _Tensor()
    sizes = (ctypes.c_uint32 * codes.ndim)(*codes.shape)
    made.fields.kind, made.fields.rank, made.fields.sizes = kind, codes.ndim, sizes
    quantization = _Quantization()
    quantization.defined, quantization.encoding = 1, encoding
    quantization.per_column.bits = bits
    made.fields.quantization = quantization
    made.fields.data, made.fields.data_bytes = codes.ctypes.data, codes.nbytes
    return made


@pytest.mark.parametrize("code", range(-8, 8))
@pytest.mark.parametrize("high_bits", [0x00, 0xF0])
def test_fits_exactly_minus_2_to_1_whatever_the_high_bits(code: int, high_bits: int) -> None:
    codes = np.full((4, 6), (code & 0x0F) | high_bits, np.uint8)
    assert _fits_two_bits(tensor(codes).fields) is (-2 <= code <= 1)


def test_other_tensors_are_left_alone() -> None:
    codes = np.zeros((4, 6), np.uint8)
    assert _fits_two_bits(tensor(codes).fields)
    assert not _fits_two_bits(tensor(codes, bits=8).fields)
    assert not _fits_two_bits(tensor(codes, kind=3).fields)
    assert not _fits_two_bits(tensor(codes, encoding=0).fields)
    short = tensor(codes)
    short.fields.data_bytes = 12  # two codes a byte: not the layout that is known
    assert not _fits_two_bits(short.fields)


class FakeBackend:
    """A QNN backend with an interface of some version."""

    def __init__(self, major: int, count: int) -> None:
        self._interface = (ctypes.c_uint32 * 16)()
        self._interface[4] = major
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._interface))
        self._count = count

    def QnnInterface_getProviders(self, providers: object, count: object) -> int:  # noqa: N802 - QNN's own name
        ctypes.cast(providers, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.addressof(self._pointer)
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint32))[0] = self._count
        return 0


@pytest.mark.parametrize(("major", "count", "reason"), [(3, 1, "version 3"), (2, 2, "2 interfaces")])
def test_an_interface_of_another_layout_is_refused(major: int, count: int, reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        _slot(FakeBackend(major, count))  # type: ignore[arg-type]


def test_a_backend_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        TwoBitStorage(tmp_path / "absent.so")
