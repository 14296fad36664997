"""The packed table against transformers' QuantizedEmbedding, bit for bit, and everything that it must refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import nn
from transformers.integrations.gemma_quant import QuantizedEmbedding

from quant.errors import QuantError, TableFileError, TokenIdError
from quant.packed_table import PackedTable

METADATA = {"kind": "packed_table", "schema_version": "1", "bits": "4", "width": "6", "factor": "1.5"}


def random_table(bits: int, width: int, groups: int = 1, rows: int = 40, factor: float = 1536**0.5) -> PackedTable:
    """Every byte random, those bits too that pad the end of a row; scales over six decades, and one of 0."""
    rng = np.random.default_rng([bits, width, groups, rows])
    kind = np.int8 if bits == 8 else np.uint8
    codes = rng.integers(0, 256, (rows, -(-width * bits // 8)), dtype=np.uint8).view(kind)
    scale = (10.0 ** rng.uniform(-4, 2, (rows, groups))).astype(np.float32)
    scale[rows // 2] = 0.0
    return PackedTable(codes, scale, bits, width, factor)


def reference(table: PackedTable) -> QuantizedEmbedding:
    """transformers' layer with the same bytes; its own scale is [rows, 1], its arithmetic knows groups."""
    layer = QuantizedEmbedding(table.rows, table.width, torch.float32, table.factor, num_bits=table.bits)
    layer.embedding_quantized = nn.Parameter(torch.from_numpy(table.codes.copy()), requires_grad=False)
    layer.embedding_scale = nn.Parameter(torch.from_numpy(table.scale.copy()), requires_grad=False)
    return layer


def assert_same_bits(found: np.ndarray, expected: torch.Tensor) -> None:
    assert found.dtype == np.float32
    assert found.shape == tuple(expected.shape)
    assert found.tobytes() == expected.detach().numpy().tobytes()


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([2, 4, 8]),
    groups=st.integers(1, 7),
    group_width=st.integers(1, 9),
    rows=st.integers(1, 9),
    factor=st.sampled_from([1.0, 18**0.5, 1536**0.5, 16 * 2**-0.5, 0.3]),
    data=st.data(),
)
def test_rows_are_those_of_transformers(
    bits: int, groups: int, group_width: int, rows: int, factor: float, data: st.DataObject
) -> None:
    """Any order of ids, also repeated; widths whose last byte is half empty, groups that begin inside a byte."""
    table = random_table(bits, groups * group_width, groups, rows, factor)
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=12)), np.int64)
    assert_same_bits(table.lookup(ids), reference(table)(torch.from_numpy(ids)))


@pytest.mark.parametrize(("bits", "width", "groups"), [(2, 1536, 1), (4, 35 * 256, 35), (8, 1536, 1)])
def test_rows_of_e2bs_size(bits: int, width: int, groups: int) -> None:
    table = random_table(bits, width, groups)
    ids = np.array([39, 0, 17, 17, 20])
    assert_same_bits(table.lookup(ids), reference(table)(torch.from_numpy(ids)))
    assert table.rows == 40
    assert table.size_bytes == 40 * (width * bits // 8 + 4 * groups)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_no_ids_give_no_rows(bits: int) -> None:
    """transformers' 2-bit and 4-bit layers fail here."""
    found = random_table(bits, 15, 5).lookup(np.empty(0, np.int64))
    assert found.dtype == np.float32
    assert found.shape == (0, 15)


def test_codes_by_hand() -> None:
    """Low bits first, code + 2^(bits-1): 0xe4 is 0, 1, 2, 3, which are the codes -2, -1, 0, 1."""
    two = PackedTable(np.array([[0xE4, 0xFF]], np.uint8), np.array([[0.5]], np.float32), 2, 5, 4.0)
    assert two.lookup(np.array([0])).tolist() == [[-4.0, -2.0, 0.0, 2.0, 2.0]]
    four = PackedTable(np.array([[0x80, 0x9F]], np.uint8), np.array([[1.0, 10.0]], np.float32), 4, 4, 1.0)
    assert four.lookup(np.array([0])).tolist() == [[-8.0, 0.0, 70.0, 10.0]]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("token_id", [-1, 40, 41, -40, 2**40, -(2**40)])
def test_an_id_outside_the_table_never_wraps(bits: int, token_id: int) -> None:
    table = random_table(bits, 6)
    for ids in ([token_id], [0, token_id, 39]):
        with pytest.raises(TokenIdError, match=rf"token id {token_id} is not in the table, whose ids are 0\.\.39"):
            table.lookup(np.array(ids))


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1], np.int32),
        np.array([1], np.uint64),
        np.array([1.0]),
        np.array([True]),
        np.array(1),
        np.array([[1]]),
    ],
)
def test_ids_of_another_form_are_refused(ids: np.ndarray) -> None:
    words = re.escape(f"token ids are {ids.dtype} {list(ids.shape)}; int64 [n] is needed")
    with pytest.raises(QuantError, match=words):
        random_table(4, 6).lookup(ids)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_max_abs_is_reached_by_the_lowest_code_and_never_passed(bits: int, sign: float) -> None:
    table = random_table(bits, 35, 5)
    largest = np.unravel_index(np.argmax(table.scale), table.scale.shape)
    table.scale[largest] *= np.float32(sign)
    every_id = np.arange(table.rows)
    assert np.abs(table.lookup(every_id)).max() <= table.max_abs()
    lowest = -128 if bits == 8 else 0
    table.codes[largest[0]] = lowest
    assert np.abs(table.lookup(every_id)).max() == table.max_abs()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_scale_that_is_not_finite_is_found_where_it_is_used(value: float) -> None:
    table = random_table(4, 6, 2)
    table.scale[7, 1] = value
    assert table.lookup(np.array([6, 8])).shape == (2, 6)
    with pytest.raises(QuantError, match="scale of token id 7 is not finite"):
        table.lookup(np.array([6, 7]))
    with pytest.raises(QuantError, match=r"scale of the table is up to .* no finite range"):
        table.max_abs()


@pytest.mark.parametrize(("bits", "width", "groups"), [(2, 7, 1), (4, 15, 5), (8, 9, 3)])
def test_save_and_load(tmp_path: Path, bits: int, width: int, groups: int) -> None:
    table, path = random_table(bits, width, groups), tmp_path / "table.safetensors"
    table.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["table.safetensors"]
    stored = load_file(path)
    assert {name: array.dtype for name, array in stored.items()} == {
        "codes": table.codes.dtype,
        "scale": table.scale.dtype,
    }
    assert stored["codes"].tobytes() == table.codes.tobytes()
    assert stored["scale"].tobytes() == table.scale.tobytes()
    loaded = PackedTable.load(path)
    assert (loaded.bits, loaded.width, loaded.factor) == (bits, width, table.factor)
    # The rows are mapped from the file: replacing the file under them must not disturb them.
    loaded.save(path)
    ids = np.arange(table.rows)
    for again in (loaded, PackedTable.load(path)):
        assert_same_bits(again.lookup(ids), reference(table)(torch.from_numpy(ids)))
    with pytest.raises(ValueError, match="read-only"):
        loaded.codes[0, 0] = 0


def test_arrays_that_are_not_contiguous_are_saved_as_they_look(tmp_path: Path) -> None:
    whole = random_table(8, 12)
    part = PackedTable(whole.codes[::2, 3:9], np.asfortranarray(whole.scale[::2].repeat(2, 1)), 8, 6, 1.0)
    part.save(tmp_path / "part")
    assert np.array_equal(PackedTable.load(tmp_path / "part").codes, whole.codes[::2, 3:9])


def resident_bytes(path: Path) -> int | None:
    """Bytes of this file's mappings that are in memory; None where the system does not say."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        return None
    found = re.findall(rf"^[0-9a-f].*{re.escape(str(path))}\n(?:.*\n)*?Rss:\s+(\d+) kB", smaps.read_text(), re.M)
    assert found, "the file is not mapped"
    return 1024 * sum(int(size) for size in found)


def test_loading_reads_no_row_and_a_lookup_only_its_own(tmp_path: Path) -> None:
    """16 MB of rows: what is written into the file after loading shows, and few pages come in."""
    rows, path = 4000, tmp_path / "large.safetensors"
    PackedTable(np.zeros((rows, 4096), np.int8), np.ones((rows, 1), np.float32), 8, 4096, 2.0).save(path)
    loaded = PackedTable.load(path)
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(-4096, 2)
        file.write(b"\x03" * 4096)
    assert loaded.lookup(np.array([0, rows - 1])).sum(axis=1).tolist() == [0.0, 4096 * 6.0]
    resident = resident_bytes(path)
    assert resident is None or resident < size_bytes / 4


def test_unusable_files_are_named(tmp_path: Path) -> None:
    absent, text, foreign, truncated = (tmp_path / name for name in ("absent", "text", "foreign", "truncated"))
    text.write_text("<html>not found</html>")
    save_file({"codes": torch.zeros(1, 1)}, foreign)
    random_table(4, 6).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:-1])
    for path in (absent, text, foreign, truncated, tmp_path):
        with pytest.raises(TableFileError, match=str(path)):
            PackedTable.load(path)


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({}, {"kind": "embedding_table"}, "no packed table of schema 1"),
        ({}, {"schema_version": "2"}, "no packed table of schema 1"),
        ({"more": torch.ones(1)}, {}, r"holds the tensors \['codes', 'more', 'scale'\]"),
        ({}, {"bits": "3"}, "bits of a table are 3"),
        ({}, {"bits": "four"}, "bits is 'four', not a number"),
        ({}, {"bits": "8"}, r"codes are uint8 \[5, 3\]; int8"),
        ({}, {"bits": "2"}, r"codes are \[5, 3\], but a row of 6 values of 2 bits takes 2 bytes"),
        ({}, {"width": "0"}, "width of a table is 0"),
        ({}, {"width": "8"}, r"codes are \[5, 3\], but a row of 8 values of 4 bits takes 4 bytes"),
        ({}, {"width": "5"}, r"scale is \[5, 2\], but there are 5 rows of 5 values"),
        ({}, {"width": "6.0"}, r"width is '6\.0', not a number"),
        ({}, {"factor": "0"}, r"factor of a table is 0\.0"),
        ({}, {"factor": "-1"}, r"factor of a table is -1\.0"),
        ({}, {"factor": "inf"}, "factor of a table is inf"),
        ({}, {"factor": "nan"}, "factor of a table is nan"),
        ({}, {"factor": ""}, "factor is '', not a number"),
        ({"codes": torch.zeros(5, 3)}, {}, r"codes are float32 \[5, 3\]; uint8"),
        ({"codes": torch.zeros(5, 3).bfloat16()}, {}, r"codes are torch\.bfloat16, which no table has"),
        ({"codes": torch.zeros(15, dtype=torch.uint8)}, {}, r"codes are uint8 \[15\]"),
        ({"codes": torch.zeros(0, 3, dtype=torch.uint8)}, {}, r"codes are uint8 \[0, 3\]"),
        ({"scale": torch.ones(5, 2).double()}, {}, r"scale are float64 \[5, 2\]; float32"),
        ({"scale": torch.ones(5)}, {}, r"scale are float32 \[5\]"),
        ({"scale": torch.ones(4, 2)}, {}, r"scale is \[4, 2\], but there are 5 rows"),
        ({"scale": torch.ones(5, 4)}, {}, r"scale is \[5, 4\], but .* groups of one size"),
        ({"scale": torch.ones(5, 0)}, {}, r"scale are float32 \[5, 0\]"),
    ],
)
def test_inconsistent_files_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str], message: str
) -> None:
    path = tmp_path / "table"
    good: dict[str, Any] = {"codes": torch.zeros(5, 3, dtype=torch.uint8), "scale": torch.ones(5, 2)}
    save_file(good, path, metadata=METADATA)
    assert PackedTable.load(path).lookup(np.array([4])).tolist() == [[-12.0] * 6]
    save_file(good | tensors, path, metadata=METADATA | metadata)
    with pytest.raises(TableFileError, match=message) as caught:
        PackedTable.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("missing", ["bits", "width", "factor"])
def test_missing_numbers_are_named(tmp_path: Path, missing: str) -> None:
    metadata = {name: value for name, value in METADATA.items() if name != missing}
    save_file({"codes": torch.zeros(5, 3, dtype=torch.uint8), "scale": torch.ones(5, 2)}, tmp_path / "t", metadata)
    with pytest.raises(TableFileError, match=f"{missing} is None, not a number"):
        PackedTable.load(tmp_path / "t")
