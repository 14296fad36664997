"""Two, four or eight bits a code in bytes, the first code in the low bits.

Two forms, which differ in how a negative code is stored and in what a line of bytes is:
- `pack`: two's complement over the flattened tensor, ONNX's raw_data for INT2, INT4 and INT8 (OCP order);
- `pack_offset`: value + 2^(bits - 1) over the last axis, the `quant_method: gemma` checkpoints (transformers,
  integrations/gemma_quant.py). Its 8-bit tensors are plain int8 and need no packing.
Knows nothing of scales.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from quant.errors import PackingError


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack int8 `codes` of any shape, flattened, to uint8 [ceil(count * bits / 8)]; missing codes are 0.

    [1, 2, 3] at 4 bits is the bytes 21 03. Raises PackingError for bits not 2, 4, 8 and codes that do not fit.
    """
    _check_bits(bits, (2, 4, 8))
    _check_codes(codes, bits)
    return _join(codes.flatten().view(torch.uint8), bits)


def unpack(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The `count` int8 codes [count] of uint8 bytes [bytes] from `pack`. Raises PackingError for a wrong length."""
    _check_bits(bits, (2, 4, 8))
    if packed.ndim != 1:
        raise PackingError(f"packed bytes have shape {list(packed.shape)}; `pack` gives one dimension")
    values = _split(packed, bits, count)
    # sign extension without branches: (v ^ s) - s with s the sign bit, modulo 256
    sign = 1 << (bits - 1)
    return ((values ^ sign) - sign).view(torch.int8)


def pack_offset(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack int8 `codes` [..., count] to uint8 [..., ceil(count * bits / 8)] as code + 2^(bits - 1).

    Raises PackingError for bits not 2 or 4 and codes that do not fit.
    """
    _check_bits(bits, (2, 4))
    _check_codes(codes, bits)
    return _join((codes + (1 << (bits - 1))).view(torch.uint8), bits)


def unpack_offset(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The int8 codes [..., count] of uint8 bytes [..., bytes]. Raises PackingError for a wrong length."""
    _check_bits(bits, (2, 4))
    return _split(packed, bits, count).view(torch.int8) - (1 << (bits - 1))


def _join(values: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [..., count] -> uint8 [..., ceil(count / per_byte)], low bits first."""
    per_byte = 8 // bits
    values = functional.pad(values & (2**bits - 1), (0, -values.shape[-1] % per_byte))
    joined = values[..., 0::per_byte].clone()
    for place in range(1, per_byte):
        joined |= values[..., place::per_byte] << (place * bits)
    return joined


def _split(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """uint8 [..., bytes] -> uint8 [..., count], low bits first."""
    if packed.dtype != torch.uint8:
        raise PackingError(f"packed bytes are {packed.dtype}; uint8 is needed, or the right shift drags the sign along")
    needed = -(-count * bits // 8)
    if count < 0 or packed.shape[-1] != needed:
        raise PackingError(f"{count} codes of {bits} bits take {needed} bytes, but there are {packed.shape[-1]}")
    places = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(places, dim=-1).flatten(-2)[..., :count].contiguous()


def _check_bits(bits: int, allowed: tuple[int, ...]) -> None:
    if bits not in allowed:
        raise PackingError(f"{bits} bits a code are not supported here; use one of {', '.join(map(str, allowed))}")


def _check_codes(codes: torch.Tensor, bits: int) -> None:
    if codes.dtype != torch.int8:
        raise PackingError(f"codes are {codes.dtype}; int8 is needed")
    if codes.ndim == 0:
        raise PackingError("codes are a scalar; give at least one dimension")
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    wrong = (codes < low) | (codes > high)
    if bool(wrong.any()):
        raise PackingError(f"code {codes[wrong][0].item()} does not fit {bits} bits, which hold {low} to {high}")
