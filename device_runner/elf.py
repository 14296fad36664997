"""What an ELF file says of itself: word size, machine, and the libraries that it needs. Reads nothing else of it.

Source: the System V ABI (ELF header, program headers, dynamic section); machine numbers from its registry.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.native_errors import PieceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

X86_64, AARCH64, HEXAGON = 62, 183, 164
MACHINE_NAMES = {X86_64: "x86-64", AARCH64: "AArch64", HEXAGON: "Hexagon", 3: "x86", 40: "32-bit ARM"}

_HEADER_BYTES = {32: 52, 64: 64}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5


@dataclass(frozen=True)
class ElfFacts:
    """`bits`: 32 or 64. `machine`: e_machine. `needed`: names of the DT_NEEDED entries, in their order."""

    bits: int
    machine: int
    needed: tuple[str, ...]

    @property
    def machine_name(self) -> str:
        """The machine in words, its number where it has none here."""
        return MACHINE_NAMES.get(self.machine, f"machine {self.machine}")


def read_elf(path: Path) -> ElfFacts:
    """Facts of an ELF file; raises PieceError where it is none, is not little-endian or is cut off."""
    with path.open("rb") as file:
        data = file.read()
    if data[:4] != b"\x7fELF":
        raise PieceError(f"{path.name} is not a library or program (no ELF header, {len(data)} bytes): get it again")
    bits = {1: 32, 2: 64}.get(data[4] if len(data) > 4 else 0)
    if bits is None or len(data) < _HEADER_BYTES[bits] or data[5] != 1:
        raise PieceError(f"{path.name} is cut off or not little-endian ({len(data)} bytes): get it again")
    try:
        (machine,) = struct.unpack_from("<H", data, 18)
        return ElfFacts(bits, machine, tuple(_needed(data, bits)))
    except (struct.error, ValueError) as error:
        raise PieceError(f"{path.name} is cut off or damaged ({error}; {len(data)} bytes): get it again") from error


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def _segments(data: bytes, bits: int) -> Iterator[_Segment]:
    if bits == 64:
        (table,) = struct.unpack_from("<Q", data, 32)
        entry, count = struct.unpack_from("<HH", data, 54)
    else:
        (table,) = struct.unpack_from("<I", data, 28)
        entry, count = struct.unpack_from("<HH", data, 42)
    for index in range(count):
        at = table + index * entry
        if bits == 64:
            kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, at)
        else:
            kind, offset, address, _, size = struct.unpack_from("<IIIII", data, at)
        yield _Segment(kind, offset, address, size)


def _needed(data: bytes, bits: int) -> Iterator[str]:
    segments = list(_segments(data, bits))
    dynamic = next((segment for segment in segments if segment.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return
    layout = struct.Struct("<qQ" if bits == 64 else "<iI")
    entries = []
    for at in range(dynamic.offset, dynamic.offset + dynamic.size, layout.size):
        tag, value = layout.unpack_from(data, at)
        if tag == _DT_NULL:
            break
        entries.append((tag, value))
    strings = next((_file_offset(segments, value) for tag, value in entries if tag == _DT_STRTAB), 0)
    for tag, value in entries:
        if tag == _DT_NEEDED:
            start = strings + value
            yield data[start : data.index(b"\0", start)].decode("utf-8", "replace")


def _file_offset(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    raise ValueError(f"no segment holds address {address:#x}")
