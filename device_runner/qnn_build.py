"""Which build of QNN a library is of, read off the texts in it.

Qualcomm's libraries carry their build in one of these forms (seen in QNN 2.51 for x86-64, AArch64 and Hexagon):

    v2.51.0.260929181845        libQnnHtp.so, the stubs and the skeletons
    260929181845                libQnnSystem.so: the number alone, as a C string
    (nothing)                   the ONNX Runtime provider, which is of ONNX Runtime's project

The number is a time, YYMMDDhhmmss. Hexagon code holds other texts of twelve digits, so a bare number counts only
where there is no full text, and only between two zero bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.native_errors import PieceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DATE = rb"2\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_TIME = rb"(?:[01]\d|2[0-3])[0-5]\d[0-5]\d"
# Begins with a plain letter: the files have up to 100 MB, and only that is searched for quickly.
_FULL = re.compile(rb"(v\d+\.\d+\.\d+\." + _DATE + rb"(?:" + _TIME + rb")?)(?![0-9])")
_BARE = re.compile(rb"\0(" + _DATE + _TIME + rb")(?=\0)")
_ORT = re.compile(rb"\0VERS_(\d+\.\d+\.\d+)\0")


@dataclass(frozen=True)
class BuildStamp:
    """`text`: "v2.51.0.260929181845", or the number alone; None where the library carries neither."""

    text: str | None

    @property
    def number(self) -> str | None:
        """The build's number without the version; None where unknown."""
        return None if self.text is None else self.text.rpartition(".")[2]

    @property
    def full(self) -> bool:
        """Whether the version is known too."""
        return self.text is not None and self.text.startswith("v")


def read_stamp(path: Path) -> BuildStamp:
    """The build that `path` is of; raises PieceError where it carries texts of several builds."""
    data = path.read_bytes()
    texts = {match.group(1).decode() for match in _FULL.finditer(data)}
    if not texts:
        texts = {match.group(1).decode() for match in _BARE.finditer(data)}
    if len(texts) > 1:
        raise PieceError(f"{path.name} carries the texts of several QNN builds ({', '.join(sorted(texts))})")
    return BuildStamp(next(iter(texts), None))


def one_build(stamps: Mapping[str, BuildStamp]) -> str | None:
    """The build that all stamped libraries (name -> stamp) are of, with its version; None where no stamp has one.

    Raises PieceError where two differ, naming one library of each build.
    """
    first: dict[str, str] = {}
    for name, stamp in stamps.items():
        if stamp.number is not None:
            first.setdefault(stamp.number, name)
    if len(first) > 1:
        shown = ", ".join(f"{name} is of {stamps[name].text}" for name in first.values())
        raise PieceError(
            f"the QNN libraries are not of one build: {shown}. Libraries of different builds do not work together: "
            "take all of them from one qnn-runtime AAR or one QAIRT SDK"
        )
    return next((stamp.text for stamp in stamps.values() if stamp.full), None)


def version_of(build: str) -> str:
    """ "2.51.0" of "v2.51.0.260929181845"."""
    return build.removeprefix("v").rpartition(".")[0]


def ort_version(path: Path) -> str | None:
    """Version of a libonnxruntime.so, from the name of its symbols' version; None where it has none."""
    found = {match.group(1).decode() for match in _ORT.finditer(path.read_bytes())}
    return found.pop() if len(found) == 1 else None
