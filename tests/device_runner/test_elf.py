"""ELF facts against readelf's, and damaged files."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from device_runner.elf import read_elf
from device_runner.native_errors import PieceError

from .made_up_elf import AARCH64, HEXAGON, X86_64, elf


def readelf(path: Path) -> tuple[str, list[str]]:
    """Class and needed libraries in readelf's words."""
    said = subprocess.run(["readelf", "-hd", str(path)], capture_output=True, text=True, check=True).stdout
    (kind,) = re.findall(r"Class:\s+(\S+)", said)
    return kind, re.findall(r"\(NEEDED\)\s+Shared library: \[([^]]+)\]", said)


@pytest.mark.native
@pytest.mark.parametrize(("bits", "machine"), [(64, AARCH64), (32, HEXAGON), (64, X86_64)])
def test_a_library_is_read_as_readelf_reads_it(tmp_path: Path, bits: int, machine: int) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(elf(machine, bits=bits, needed=("libc.so", "libm.so"), texts=("word",)))
    facts = read_elf(path)
    assert (f"ELF{facts.bits}", list(facts.needed)) == readelf(path)
    assert (facts.bits, facts.machine, facts.needed) == (bits, machine, ("libc.so", "libm.so"))


@pytest.mark.native
def test_a_real_library_is_read_as_readelf_reads_it() -> None:
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("capi/libonnxruntime.so.*")
    facts = read_elf(path)
    assert (f"ELF{facts.bits}", list(facts.needed)) == readelf(path)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "no ELF header"),
        (b"PK\x03\x04", "no ELF header"),
        (b"\x7fELF", "cut off"),
        (elf(AARCH64)[:60], "cut off"),
        (elf(AARCH64)[:100], "cut off or damaged"),
        (elf(AARCH64, needed=("libc.so",))[:-9], "cut off or damaged"),
        (elf(AARCH64).replace(b"\x7fELF\x02\x01", b"\x7fELF\x02\x02"), "not little-endian"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "libQnnHtp.so"
    path.write_bytes(content)
    with pytest.raises(PieceError, match=word) as caught:
        read_elf(path)
    assert "libQnnHtp.so" in str(caught.value)
