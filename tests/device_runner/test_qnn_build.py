"""Build texts of QNN's libraries: the forms that Qualcomm's files hold, and what looks like one but is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from device_runner.native_errors import PieceError
from device_runner.qnn_build import BuildStamp, one_build, ort_version, read_stamp, version_of

if TYPE_CHECKING:
    from pathlib import Path

BUILD, OTHER = "v2.51.0.260929181845", "v2.50.0.260828221209"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"..\0v2.51.0.260929181845\0AISW_VERSION: 2.51.0\0", BUILD),
        (b"..\0hexnn_ver_v2.51.0.260929181845.\0v2.51.0.260929181845 <E> no\0", BUILD),
        (b"..\0v2.51.0.260929\0", "v2.51.0.260929"),
        (b"got %s\x0051\x00260929181845\0Text", "260929181845"),
        (b'.."226620660000\x10\0' + b"AISW_VERSION: 2.51.0\0", None),
        (b"\x00226620660000\0", None),
        (b"\0260929181860\0", None),
        (b"\x001260929181845\x002609291818451\0", None),
        (b"\x00260929181845.\0", None),
        (b"\0v2.51.0\0", None),
        (b"", None),
    ],
)
def test_the_build_of_a_library(tmp_path: Path, content: bytes, text: str | None) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    assert read_stamp(path).text == text


def test_two_builds_in_one_library_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "libQnnHtp.so"
    path.write_bytes(f"\0{BUILD}\0{OTHER}\0".encode())
    with pytest.raises(PieceError, match=rf"libQnnHtp\.so .*{OTHER}, {BUILD}"):
        read_stamp(path)


def test_one_build_is_the_one_with_its_version() -> None:
    stamps = {"libQnnSystem.so": "260929181845", "libQnnIr.so": None, "libQnnHtp.so": BUILD}
    assert one_build({name: BuildStamp(text) for name, text in stamps.items()}) == BUILD
    assert one_build({"libQnnSystem.so": BuildStamp("260929181845")}) is None
    assert one_build({}) is None
    assert version_of(BUILD) == "2.51.0"


@pytest.mark.parametrize("system", ["260828221209", OTHER])
def test_libraries_of_two_builds_are_named(system: str) -> None:
    stamps = {"libQnnHtp.so": BuildStamp(BUILD), "libQnnSystem.so": BuildStamp(system)}
    with pytest.raises(PieceError) as caught:
        one_build(stamps)
    assert f"libQnnHtp.so is of {BUILD}, libQnnSystem.so is of {system}" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "version"), [(b"\0VERS_1.32.0\0", "1.32.0"), (b"\0VERS_1.0\0", None), (b"1.32.0\0", None)]
)
def test_the_version_of_onnx_runtime(tmp_path: Path, content: bytes, version: str | None) -> None:
    path = tmp_path / "libonnxruntime.so"
    path.write_bytes(content)
    assert ort_version(path) == version
