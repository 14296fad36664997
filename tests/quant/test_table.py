"""The embedding table against transformers' Gemma4TextScaledWordEmbedding, and everything a lookup must refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextScaledWordEmbedding

from quant.errors import QuantError, TableFileError, TokenIdError
from quant.table import EmbeddingTable, build_table, embedding_scale, scale_rows

HIDDEN, VOCAB = 1536, 400
IDS = [0, 1, 2, 106, VOCAB - 1]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def embedding(dtype: torch.dtype) -> Gemma4TextScaledWordEmbedding:
    """transformers' layer with E2B's hidden size in `dtype`."""
    torch.manual_seed(9)
    layer = Gemma4TextScaledWordEmbedding(VOCAB, HIDDEN, padding_idx=0, embed_scale=HIDDEN**0.5)
    torch.nn.init.normal_(layer.weight, std=0.02)
    return layer.to(dtype)


def small_table() -> EmbeddingTable:
    ids = torch.tensor([9, 1, 5, 106])
    return build_table([(ids[:2], torch.eye(2, 3)), (ids[2:], torch.full((2, 3), 4.0))])


@pytest.mark.parametrize(
    ("hidden_size", "dtype", "value"),
    [
        (1536, torch.float32, 39.1918),
        (1536, torch.bfloat16, 39.25),
        (1536, torch.float16, 39.1875),
        (256, torch.bfloat16, 16.0),
    ],
)
def test_embedding_scale_is_rounded_in_the_declared_type(hidden_size: int, dtype: torch.dtype, value: float) -> None:
    """Case 14, values measured on transformers."""
    assert embedding_scale(hidden_size, dtype) == pytest.approx(value, abs=5e-5 if dtype == torch.float32 else 0)
    layer = Gemma4TextScaledWordEmbedding(2, hidden_size, padding_idx=0, embed_scale=hidden_size**0.5).to(dtype)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    assert embedding_scale(hidden_size, dtype) == layer(torch.tensor([1])).flatten()[0].item()


@pytest.mark.parametrize("dtype", DTYPES)
def test_float_rows_are_transformers_rows(dtype: torch.dtype) -> None:
    layer = embedding(dtype)
    assert torch.equal(scale_rows(layer.weight.detach()[IDS]), layer(torch.tensor(IDS)).detach().float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_table_rows_are_within_half_a_scale_of_transformers(dtype: torch.dtype) -> None:
    """Case 14 with the whole vocabulary, in chunks of 128 rows that come in reverse order."""
    layer = embedding(dtype)
    starts = range(0, VOCAB, 128)
    weight = layer.weight.detach()
    table = build_table(
        (torch.arange(start, min(start + 128, VOCAB)), scale_rows(weight[start : start + 128]))
        for start in reversed(starts)
    )
    expected = layer(torch.tensor(IDS)).detach().float()
    found = table.lookup_many(torch.tensor(IDS))
    half_scale = expected.abs().amax(1, keepdim=True) / 127 / 2
    assert bool(((found - expected).abs() <= half_scale * 1.0001).all())
    assert torch.equal(table.lookup(106), found[3])
    assert table.width == HIDDEN
    assert table.size_bytes == VOCAB * (HIDDEN + 4 + 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ids_of_the_real_vocabulary(dtype: torch.dtype) -> None:
    """Case 14: E2B's ids and scale; of its width only eight columns, to keep the layer small."""
    ids = torch.tensor([0, 1, 2, 106, 262143])
    torch.manual_seed(10)
    layer = Gemma4TextScaledWordEmbedding(262144, 8, padding_idx=0, embed_scale=HIDDEN**0.5)
    torch.nn.init.normal_(layer.weight, std=0.02)
    expected = layer.to(dtype)(ids).detach().float()
    scaled = layer.weight.detach()[ids].float() * embedding_scale(HIDDEN, dtype)
    rows = scaled.to(dtype).float()
    assert torch.equal(rows, expected)
    found = build_table([(ids, rows)]).lookup_many(ids)
    assert bool(((found - expected).abs() <= expected.abs().amax(1, keepdim=True) / 127 / 2 * 1.0001).all())
    with pytest.raises(TokenIdError, match="token id 262144 "):
        build_table([(ids, rows)]).lookup(262144)


@pytest.mark.parametrize("token_id", [-1, VOCAB, VOCAB + 1, 2**40, -(2**40)])
def test_an_id_outside_the_vocabulary_never_wraps(token_id: int) -> None:
    """Case 23: -1, rows and rows + 1 raise the same error, alone and among good ids."""
    table = build_table([(torch.arange(VOCAB), torch.ones(VOCAB, 2))])
    with pytest.raises(TokenIdError, match=f"token id {token_id} is not among"):
        table.lookup(token_id)
    with pytest.raises(TokenIdError, match=f"token id {token_id} is not among"):
        table.lookup_many(torch.tensor([0, token_id, VOCAB - 1]))
    assert table.lookup(VOCAB - 1).tolist() == [1.0, 1.0]


def test_an_id_between_kept_ids_is_refused() -> None:
    table = small_table()
    assert table.token_ids.tolist() == [1, 5, 9, 106]
    assert table.lookup(9).tolist() == [1.0, 0.0, 0.0]
    assert table.lookup(1).tolist() == [0.0, 1.0, 0.0]
    assert table.lookup_many(torch.tensor([106, 9, 9]))[:, 0].tolist() == [4.0, 1.0, 1.0]
    for unknown in (0, 2, 8, 10, 105, 107):
        with pytest.raises(TokenIdError, match=f"token id {unknown} "):
            table.lookup(unknown)


@pytest.mark.filterwarnings("error")
def test_a_zero_row_stays_zero() -> None:
    table = build_table([(torch.tensor([3, 4]), torch.tensor([[0.0, 0.0], [2e-7, 0.0]]))])
    assert table.lookup(3).tolist() == [0.0, 0.0]
    assert table.lookup(4)[0].item() == pytest.approx(2e-7)


def test_save_and_load(tmp_path: Path) -> None:
    table, path = small_table(), tmp_path / "table.safetensors"
    table.save(path)
    loaded = EmbeddingTable.load(path)
    assert [item.name for item in tmp_path.iterdir()] == ["table.safetensors"]
    for name in ("codes", "scale", "token_ids"):
        assert torch.equal(getattr(loaded, name), getattr(table, name))
    # the rows are mapped from the file: replacing the file under them must not disturb them
    loaded.save(path)
    assert torch.equal(loaded.codes, table.codes)


def test_loading_maps_the_file_instead_of_reading_it(tmp_path: Path) -> None:
    rows = 20_000
    path = tmp_path / "large.safetensors"
    codes = torch.ones(rows, 1000, dtype=torch.int8)
    EmbeddingTable(codes, torch.ones(rows), torch.arange(rows)).save(path)
    del codes
    loaded = EmbeddingTable.load(path)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(path) in maps.read_text()
    assert loaded.lookup(rows - 1).sum().item() == 1000.0


def test_unusable_files_are_named(tmp_path: Path) -> None:
    absent, text, foreign, truncated = (tmp_path / name for name in ("absent", "text", "foreign", "truncated"))
    text.write_text("<html>not found</html>")
    save_file({"codes": torch.zeros(1, 1)}, foreign)
    small_table().save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:-1])
    for path in (absent, text, foreign, truncated, tmp_path):
        with pytest.raises(TableFileError, match=str(path)):
            EmbeddingTable.load(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_ids": torch.tensor([5, 1, 9, 106])}, "must start at 0 or above and rise"),
        ({"token_ids": torch.tensor([-1, 1, 9, 106])}, "must start at 0 or above"),
        ({"token_ids": torch.tensor([1, 5, 9])}, "shapes do not agree"),
        ({"scale": torch.zeros(4)}, "scale that is not a finite number above 0"),
        ({"codes": torch.zeros(4, 3)}, "torch.int8 is needed"),
    ],
)
def test_inconsistent_contents_are_refused(tmp_path: Path, changed: dict[str, torch.Tensor], message: str) -> None:
    table, path = small_table(), tmp_path / "changed"
    tensors = {name: getattr(table, name) for name in ("codes", "scale", "token_ids")} | changed
    save_file(tensors, path, metadata={"schema_version": "1", "kind": "embedding_table"})
    with pytest.raises(TableFileError, match=message):
        EmbeddingTable.load(path)
    save_file(tensors, path, metadata={"schema_version": "2", "kind": "embedding_table"})
    with pytest.raises(TableFileError, match="schema 1"):
        EmbeddingTable.load(path)


def test_build_refusals() -> None:
    row, ids = torch.ones(1, 3), torch.tensor([7])
    with pytest.raises(QuantError, match="at least one chunk"):
        build_table([])
    with pytest.raises(QuantError, match="token id 7 was given twice"):
        build_table([(ids, row), (ids, row)])
    with pytest.raises(QuantError, match=r"different widths: \[2, 3\]"):
        build_table([(ids, row), (ids, torch.ones(1, 2))])
    with pytest.raises(QuantError, match="do not form"):
        build_table([(ids, torch.ones(2, 3))])
    with pytest.raises(QuantError, match="absmax nan"):
        build_table([(ids, torch.full((1, 3), float("nan")))])
    with pytest.raises(QuantError, match="no rows"):
        EmbeddingTable(torch.ones(0, 3, dtype=torch.int8), torch.ones(0), torch.ones(0, dtype=torch.int64))
    with pytest.raises(QuantError, match=r"float32 \[1\]; int64"):
        small_table().lookup_many(torch.tensor([1.0]))
