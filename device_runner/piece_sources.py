"""Where a phone's libraries come from: AARs (zip files of Maven Central) and the QAIRT SDK's folder.

Layouts, as their projects document and use them:

    AAR         jni/arm64-v8a/NAME, skeletons of the NPU beside the rest
    QAIRT SDK   lib/aarch64-android/NAME, skeletons in lib/hexagon-v81/unsigned/NAME
"""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from device_runner.build import ANDROID_ABI
from device_runner.native_errors import PieceError
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_JNI = f"jni/{ANDROID_ABI}/"
SKELETON = re.compile(r"libQnnHtpV(\d+)Skel\.so")


class PieceSource(Protocol):
    """Something that holds libraries under their plain names."""

    def holds(self) -> frozenset[str]:
        """Names of the libraries for arm64-v8a, the NPU's skeletons with them."""

    def place(self, name: str) -> str:
        """Where `name` lies in here, or would lie, in words for a message."""

    def copy(self, name: str, to: Path) -> None:
        """Write the library `name`, which this holds, to `to`."""


@dataclass(frozen=True)
class Aar:
    """An Android archive; `option` is the command line's name for it."""

    path: Path
    option: str

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise UsageError(f"{self.option} {self.path}: there is no such file")

    @cached_property
    def _names(self) -> frozenset[str]:
        with self._open() as archive:
            found = (name.removeprefix(_JNI) for name in archive.namelist() if name.startswith(_JNI))
            return frozenset(name for name in found if name.endswith(".so") and "/" not in name)

    def holds(self) -> frozenset[str]:
        """Libraries under jni/arm64-v8a; raises PieceError where the file is no AAR."""
        return self._names

    def place(self, name: str) -> str:
        """The AAR and the path in it."""
        return f"{self.path.name}: {_JNI}{name}"

    def copy(self, name: str, to: Path) -> None:
        """Raises PieceError where the archive is damaged."""
        with self._open() as archive, archive.open(_JNI + name) as packed, to.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)

    @contextmanager
    def _open(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise PieceError(
                f"{self.option} {self.path} is no AAR, or is damaged ({error}): download it again"
            ) from error


@dataclass(frozen=True)
class QairtSdk:
    """Qualcomm's QAIRT (QNN) SDK, unpacked."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "lib").is_dir():
            raise UsageError(
                f"--qairt-sdk {self.folder} is not a QAIRT SDK: it has no folder lib; name the folder of one version, "
                "the one that holds bin, include and lib"
            )

    def holds(self) -> frozenset[str]:
        """Libraries of lib/aarch64-android and of each lib/hexagon-vNN/unsigned."""
        library = self.folder / "lib"
        files = [*library.glob("aarch64-android/*.so"), *library.glob("hexagon-v*/unsigned/*.so")]
        return frozenset(path.name for path in files if self._path(path.name) == path)

    def place(self, name: str) -> str:
        """The path from the SDK's folder on."""
        return f"{self.folder.name}: {self._path(name).relative_to(self.folder).as_posix()}"

    def copy(self, name: str, to: Path) -> None:
        """Copies the bytes, following links."""
        shutil.copyfile(self._path(name), to)

    def _path(self, name: str) -> Path:
        skeleton = SKELETON.fullmatch(name)
        inner = f"hexagon-v{skeleton.group(1)}/unsigned" if skeleton else "aarch64-android"
        return self.folder / "lib" / inner / name
