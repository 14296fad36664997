"""Stores 2-bit weights in 2 bits: ONNX Runtime's QNN provider declares every INT4 weight 4 bits wide.

HTP itself knows weights of 2 bits with one scale per output column, and computes with them as with 4-bit ones. Between
the provider and QNN stands a table of functions, which `QnnInterface_getProviders` hands out; the one that creates the
tensors of a graph is wrapped here. A constant whose codes all lie in -2..1 is declared 2 bits wide. Nothing is rounded:
a compiled graph gives the same numbers, its file and what a pass reads are smaller. It runs without this module.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, Structure, c_int32, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

from export.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path

# QnnInterface.h, QnnTypes.h
_CORE_MAJOR = 2
_TABLE_OFFSET = 40
_CREATE_GRAPH_TENSOR = 24
_STATIC = 4
_DEFINED, _PER_COLUMN = 1, 3  # QNN_DEFINITION_DEFINED, QNN_QUANTIZATION_ENCODING_BW_AXIS_SCALE_OFFSET
_TRANSPOSED = "_transpose"  # the provider turns a weight around and names it so
_PAGE = 4096
_READ_WRITE = 3


class _PerColumn(Structure):  # Qnn_BwAxisScaleOffset_t
    _fields_ = (("bits", c_uint32), ("axis", c_int32), ("count", c_uint32), ("scales", c_void_p), ("offsets", c_void_p))


class _Quantization(Structure):  # Qnn_QuantizeParams_t; no member of its union is larger
    _fields_ = (("defined", c_uint32), ("encoding", c_uint32), ("per_column", _PerColumn))


class _Fields(Structure):  # Qnn_TensorV1_t, with which Qnn_TensorV2_t begins
    _fields_ = (
        ("id", c_uint32),
        ("name", ctypes.c_char_p),
        ("kind", c_uint32),
        ("format", c_uint32),
        ("dtype", c_uint32),
        ("quantization", _Quantization),
        ("rank", c_uint32),
        ("sizes", POINTER(c_uint32)),
        ("memory", c_uint32),
        ("data", c_void_p),
        ("data_bytes", c_uint32),
    )


class _Tensor(Structure):  # Qnn_Tensor_t
    _fields_ = (("version", c_uint32), ("fields", _Fields))


_CreateTensor = ctypes.CFUNCTYPE(c_uint64, c_void_p, POINTER(_Tensor))


class TwoBitStorage:
    """Wraps QNN's function while it lives; `narrowed` are the ONNX names of the weights stored in 2 bits."""

    def __init__(self, backend: Path) -> None:
        self.narrowed: list[str] = []
        slot = _slot(ctypes.CDLL(str(backend)))
        self._real = ctypes.cast(c_void_p.from_address(slot), _CreateTensor)
        self._mine = _CreateTensor(self._create)
        _unprotect(slot)
        c_void_p.from_address(slot).value = ctypes.cast(self._mine, c_void_p).value

    def _create(self, graph: int, pointer: ctypes._Pointer[_Tensor]) -> int:
        tensor = pointer.contents.fields
        if _fits_two_bits(tensor):
            tensor.quantization.per_column.bits = 2
            self.narrowed.append(tensor.name.decode().removesuffix(_TRANSPOSED))
        return int(self._real(graph, pointer))


def _fits_two_bits(tensor: _Fields) -> bool:
    quantization = tensor.quantization
    if (tensor.kind, quantization.defined, quantization.encoding) != (_STATIC, _DEFINED, _PER_COLUMN):
        return False
    count = math.prod(tensor.sizes[: tensor.rank])
    if quantization.per_column.bits != 4 or not tensor.data or tensor.data_bytes != count:
        return False
    codes = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(tensor.data))
    # One code a byte, in the low four bits, in two's complement.
    return not bool(np.any((codes + np.uint8(2)) & np.uint8(0x0C)))


def _slot(library: ctypes.CDLL) -> int:
    """Address of the pointer to tensorCreateGraphTensor in the one interface that the backend offers."""
    providers, count = c_void_p(), c_uint32()
    if library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) or count.value != 1:
        raise CompileError(f"QNN's backend offers {count.value} interfaces, want one")
    assert providers.value is not None
    interface = c_void_p.from_address(providers.value).value
    assert interface is not None
    major = c_uint32.from_address(interface + 16).value
    if major != _CORE_MAJOR:
        raise CompileError(f"QNN's interface has version {major}.x, 2-bit storage knows {_CORE_MAJOR}.x")
    return interface + _TABLE_OFFSET + ctypes.sizeof(c_void_p) * _CREATE_GRAPH_TENSOR


def _unprotect(address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(c_void_p(address & -_PAGE), ctypes.c_size_t(2 * _PAGE), _READ_WRITE):
        raise CompileError(f"cannot wrap QNN's interface: mprotect failed with errno {ctypes.get_errno()}")
