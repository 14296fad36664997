"""CheckpointReader against safetensors' and numpy's own reading, and against damaged folders."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file

from export.checkpoint.reader import CheckpointReader
from export.errors import CheckpointError
from tests.export.checkpoint.builders import safetensors_bytes

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def bad_dir(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that cases/tools/mkbad.py writes."""
    folder = tmp_path_factory.mktemp("bad")
    tool = shared_dir / "cases" / "tools" / "mkbad.py"
    subprocess.run([sys.executable, str(tool), str(folder)], check=True, capture_output=True, timeout=60)
    return folder


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("trunc_tail", "model.safetensors", "truncated"),
        ("trunc_header", "model.safetensors", "truncated inside its header"),
        ("empty", "model.safetensors", "empty"),
        ("html", "model.safetensors", "HTML"),
        ("lfs_pointer", "model.safetensors", "git lfs pull"),
        ("trailing", "model.safetensors", "8 bytes follow the last tensor"),
        ("huge_header", "model.safetensors", "header of 4611686018427387904 bytes"),
        ("shape_lies", "model.safetensors", "'model.b'"),
        ("missing_shard", SECOND, "absent.*'b'"),
        ("index_lies", SECOND, "'mtp.fc'"),
        ("index_omits_mtp", "model-mtp.safetensors", "'mtp.x'"),
    ],
)
def test_bad_checkpoints_are_refused_by_file_and_tensor(bad_dir: Path, name: str, file: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        CheckpointReader(bad_dir / name)
    assert str(bad_dir / name / file) in str(caught.value)


def test_every_folder_of_the_tool_is_covered(bad_dir: Path) -> None:
    good = {path.name for path in bad_dir.iterdir() if path.is_dir() and "_OK" in path.name}
    bad = {path.name for path in bad_dir.iterdir() if path.is_dir()} - good
    assert len(bad) == 11
    assert good == {"ok_OK", "sharded_OK", "stale_dup_OK_a_must_be_1"}
    for name in bad:
        with pytest.raises(CheckpointError):
            CheckpointReader(bad_dir / name)


def test_odd_but_valid_checkpoints_load(bad_dir: Path) -> None:
    single = CheckpointReader(bad_dir / "ok_OK")
    assert single.names == ("model.a", "model.b")
    assert torch.equal(single.load("model.a"), torch.ones(4, 4))
    assert torch.equal(single.load("model.b"), torch.ones(4, dtype=torch.float16))
    sharded = CheckpointReader(bad_dir / "sharded_OK")
    assert torch.equal(sharded.load("a"), torch.ones(2, 2))
    assert torch.equal(sharded.load("b"), torch.full((2, 2), 2.0))
    # The index says where `a` is; a stale copy in the other shard holds 99.
    assert torch.equal(CheckpointReader(bad_dir / "stale_dup_OK_a_must_be_1").load("a"), torch.ones(2, 2))


def test_every_type_loads_as_it_was_saved(tmp_path: Path) -> None:
    values = torch.arange(-6, 6).reshape(3, 4)
    types = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
    types += [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]
    saved = {str(dtype): values.to(dtype) for dtype in types}
    # Odd byte counts put later tensors at odd offsets; empty and scalar tensors exist in real files.
    saved |= {"a": torch.ones(3, dtype=torch.int8), "empty": torch.empty(0, 4), "scalar": torch.tensor(2.5)}
    save_file(saved, tmp_path / "model.safetensors")
    reader = CheckpointReader(tmp_path)
    assert set(reader.names) == set(saved)
    for name, tensor in saved.items():
        loaded = reader.load(name)
        assert reader.dtype(name) == loaded.dtype == tensor.dtype
        assert reader.shape(name) == tuple(tensor.shape)
        # Byte by byte: torch cannot compare every type of it.
        assert torch.equal(loaded.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_rows_equal_indexing_of_the_whole_tensor(tmp_path: Path) -> None:
    table = torch.randn(50, 3, 2).to(torch.bfloat16)
    save_file({"pad": torch.ones(1, dtype=torch.int8), "table": table}, tmp_path / "model.safetensors")
    reader = CheckpointReader(tmp_path)
    ids = torch.tensor([49, 0, 7, 7])
    assert torch.equal(reader.rows("table", ids), table[ids])
    assert reader.rows("table", torch.tensor([], dtype=torch.int64)).shape == (0, 3, 2)


def test_mapped_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    """Also at odd offsets, which the format allows; what is written to the file afterwards shows in the array."""
    path = tmp_path / "model.safetensors"
    header = {
        "odd": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]},
        "table": {"dtype": "F32", "shape": [3, 2], "data_offsets": [1, 25]},
        "empty": {"dtype": "U8", "shape": [0, 4], "data_offsets": [25, 25]},
        "scalar": {"dtype": "I64", "shape": [], "data_offsets": [25, 33]},
    }
    values = np.arange(6, dtype="<f4").reshape(3, 2)
    path.write_bytes(safetensors_bytes(header, b"\xfb" + values.tobytes() + (-7).to_bytes(8, "little", signed=True)))
    reader = CheckpointReader(tmp_path)
    mapped = {name: reader.mapped(name) for name in header}
    assert {name: (array.dtype.name, array.shape) for name, array in mapped.items()} == {
        "odd": ("int8", (1,)),
        "table": ("float32", (3, 2)),
        "empty": ("uint8", (0, 4)),
        "scalar": ("int64", ()),
    }
    assert mapped["odd"].tolist() == [-5]
    assert mapped["scalar"] == -7
    assert np.array_equal(mapped["table"], values)
    with pytest.raises(ValueError, match="read-only"):
        mapped["table"][0, 0] = 1.0
    with path.open("r+b") as file:
        file.seek(-12, 2)
        file.write(np.float32(9.0).tobytes())
    assert mapped["table"][2, 1] == 9.0


def test_types_that_numpy_lacks_are_not_mapped(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    reader = CheckpointReader(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'a' of torch\.bfloat16 cannot be mapped"):
        reader.mapped("a")
    with pytest.raises(CheckpointError, match="no tensor 'nope'"):
        reader.mapped("nope")


@pytest.mark.parametrize("row", [-1, 50])
def test_rows_never_wrap(tmp_path: Path, row: int) -> None:
    save_file({"table": torch.zeros(50, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"'table' has rows 0\.\.49, not {row}"):
        CheckpointReader(tmp_path).rows("table", torch.tensor([3, row]))


def test_loaded_tensors_outlive_their_file(tmp_path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, tmp_path / "model.safetensors")
    loaded = CheckpointReader(tmp_path).load("a")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert loaded.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_file_cut_after_opening_is_an_error_of_ours(tmp_path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, tmp_path / "model.safetensors")
    reader = CheckpointReader(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'a' cannot be read"):
        reader.load("a")


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{nonsense", b"", "not JSON"),
        (b"\xff\xfe{}", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
        (b'{"a": 1, "a": 1}', b"", "twice"),
        ([1], b"", "a list, not an object"),
        ({"a": 3}, b"", "tensor 'a' lacks"),
        ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), "tensor 'a' lacks"),
        ({"a": {**ENTRY, "dtype": "F4"}}, bytes(8), "tensor 'a' has the unknown type 'F4'"),
        ({"a": {**ENTRY, "dtype": ["F32"]}}, bytes(8), "tensor 'a' has the unknown type"),
        ({"a": {**ENTRY, "shape": [-2]}}, bytes(8), r"tensor 'a' has shape \[-2\]"),
        ({"a": {**ENTRY, "shape": [True, 2]}}, bytes(8), "tensor 'a' has shape"),
        ({"a": {**ENTRY, "shape": "2"}}, bytes(8), "tensor 'a' has shape"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, bytes(8), "tensor 'a' has shape"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8), "tensor 'a' of F32"),
        ({"a": {**ENTRY, "shape": [2**40, 2**40]}}, bytes(8), "tensor 'a' of F32"),
        ({"a": ENTRY, "b": ENTRY}, bytes(8), "tensor 'b' starts at"),
        ({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12), "tensor 'a' starts at"),
        ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [8, 16]}}, bytes(12), "truncated.*'b'"),
        ({"__metadata__": {"format": "pt"}}, b"x", "1 bytes follow"),
    ],
)
def test_lying_headers_are_refused(tmp_path: Path, header: Any, data: bytes, words: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, data))
    with pytest.raises(CheckpointError, match=words) as caught:
        CheckpointReader(tmp_path)
    assert str(tmp_path / "model.safetensors") in str(caught.value)


def test_a_header_as_long_as_a_less_than_sign_is_no_html(tmp_path: Path) -> None:
    header = json.dumps({"a": ENTRY}, separators=(",", ":")).encode().ljust(ord("<"))
    assert len(header) == 0x3C
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(8)))
    assert CheckpointReader(tmp_path).load("a").tolist() == [0.0, 0.0]


@pytest.mark.parametrize("content", [b"abc", b"\n<html>", b"PK\x03\x04" + bytes(100)])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
        CheckpointReader(tmp_path)


def test_absent_or_doubled_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        CheckpointReader(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor .* no \.safetensors file"):
        CheckpointReader(tmp_path)
    save_file({"a": torch.ones(1)}, tmp_path / FIRST)
    with pytest.raises(CheckpointError, match=f"found {FIRST}"):
        CheckpointReader(tmp_path)
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    _write_index(tmp_path, {"a": FIRST})
    with pytest.raises(CheckpointError, match="holds both"):
        CheckpointReader(tmp_path)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        CheckpointReader(tmp_path)


def test_a_second_file_with_unknown_tensors_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    save_file({"mtp.x": torch.ones(1)}, tmp_path / "model-mtp.safetensors")
    with pytest.raises(CheckpointError, match=r"model-mtp\.safetensors: holds tensor 'mtp\.x'"):
        CheckpointReader(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": ["a"]}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "../model.safetensors"}}',
        '{"weight_map": {"a": "weights.bin"}}',
    ],
)
def test_damaged_indices_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: "):
        CheckpointReader(tmp_path)


def test_only_needs_no_other_shard(tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.ones(2, 2)}, tmp_path / FIRST)
    _write_index(tmp_path, {"model.embed_tokens.weight": FIRST, "model.norm.weight": SECOND})
    reader = CheckpointReader(tmp_path, only="embed_tokens")
    assert reader.names == ("model.embed_tokens.weight",)
    with pytest.raises(CheckpointError, match=SECOND):
        CheckpointReader(tmp_path)


def test_require_names_tensor_and_file(tmp_path: Path) -> None:
    save_file(
        {"a": torch.ones(2, 3), "b": torch.ones(1), "k_cache_scale": torch.ones(1)}, tmp_path / "model.safetensors"
    )
    reader = CheckpointReader(tmp_path)
    expected = {"a": (2, 3), "b": (1,)}
    reader.require(expected, ignore=["_cache_scale$"])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: 1 tensor .*: 'k_cache_scale'"):
        reader.require(expected)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: 2 tensors missing: 'c', 'd'"):
        reader.require({**expected, "c": (1,), "d": (1,)}, ignore=["_cache_scale$"])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'a' has shape \[2, 3\].*\[3, 2\]"):
        reader.require({**expected, "a": (3, 2)}, ignore=["_cache_scale$"])
    with pytest.raises(CheckpointError, match=r"7 tensors missing: .* and 2 more"):
        reader.require({f"x{i}": (1,) for i in range(7)})
    with pytest.raises(CheckpointError, match="no tensor 'nope'"):
        reader.load("nope")


def test_sha256_covers_names_sizes_and_contents(tmp_path: Path) -> None:
    save_numpy({"a": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    lines = ""
    for name in ("config.json", "model.safetensors"):
        content = (tmp_path / name).read_bytes()
        lines += f"{name}\0{len(content)}\0{hashlib.sha256(content).hexdigest()}\n"
    assert CheckpointReader(tmp_path).sha256 == hashlib.sha256(lines.encode()).hexdigest()
    before = CheckpointReader(tmp_path).sha256
    (tmp_path / "config.json").write_text('{"a":1}')
    assert CheckpointReader(tmp_path).sha256 != before


def _write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
