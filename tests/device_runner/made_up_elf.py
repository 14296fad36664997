"""Small ELF files that say what a test wants them to say; readelf reads them too."""

from __future__ import annotations

import struct

X86_64, AARCH64, HEXAGON = 62, 183, 164
_DYNAMIC_AT, _LOADED_AT = 0x200, 0x10000


def elf(machine: int, *, bits: int = 64, needed: tuple[str, ...] = (), texts: tuple[str, ...] = ()) -> bytes:
    """A shared library with these DT_NEEDED names, and `texts` as C strings behind them."""
    strings, entries = b"\0", []
    for name in needed:
        entries.append((1, len(strings)))
        strings += name.encode() + b"\0"
    word = "Q" if bits == 64 else "I"
    dynamic_bytes = (len(entries) + 3) * 2 * struct.calcsize(f"<{word}")
    strings_at = _DYNAMIC_AT + dynamic_bytes
    entries += [(5, _LOADED_AT + strings_at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack(f"<{word}{word}", *entry) for entry in entries)
    body = dynamic + strings + b"".join(text.encode() + b"\0" for text in texts)
    size = _DYNAMIC_AT + len(body)
    segments = [(1, 0, size), (2, _DYNAMIC_AT, len(dynamic))]
    head = _header(machine, bits) + b"".join(_segment(bits, *segment) for segment in segments)
    return head.ljust(_DYNAMIC_AT, b"\0") + body


def _header(machine: int, bits: int) -> bytes:
    magic = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    if bits == 64:
        return magic + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    return magic + struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, 52, 0, 0, 52, 32, 2, 40, 0, 0)


def _segment(bits: int, kind: int, at: int, size: int) -> bytes:
    address = _LOADED_AT + at
    if bits == 64:
        return struct.pack("<IIQQQQQQ", kind, 4, at, address, address, size, size, 8)
    return struct.pack("<IIIIIIII", kind, at, address, address, size, size, 4, 4)
