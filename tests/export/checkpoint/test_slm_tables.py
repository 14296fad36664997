"""The CPU tables of an SLM's checkpoint against transformers' own loading of the same files, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Gemma4ForCausalLM, Gemma4ForConditionalGeneration
from transformers.integrations.gemma_quant import QuantizedEmbedding

from export.checkpoint.slm import read_slm_checkpoint
from export.checkpoint.slm_tables import per_layer_table, token_table
from quant.errors import TokenIdError
from quant.packed_table import PackedTable
from tests.export.checkpoint.builders import VOCAB_SIZE
from tests.export.checkpoint.slm_builders import HIDDEN, LAYERS, PLE, prefix_of, slm_config, write_slm

if TYPE_CHECKING:
    from pathlib import Path

ALL_IDS = torch.arange(VOCAB_SIZE)
TABLES = {"embed_tokens": token_table, "embed_tokens_per_layer": per_layer_table}
NESTED = "model.language_model."


def assert_rows(table: PackedTable, expected: torch.Tensor) -> None:
    assert table.lookup(ALL_IDS.numpy()).tobytes() == expected.detach().numpy().tobytes()


@pytest.mark.parametrize("nested", [True, False])
def test_rows_are_those_of_transformers(tmp_path: Path, nested: bool) -> None:
    """The per-layer rows are transformers' times 2^-0.5, which the graph leaves to the table."""
    config = slm_config(nested=nested)
    folder = write_slm(tmp_path, config)
    kind: Any = Gemma4ForConditionalGeneration if nested else Gemma4ForCausalLM
    model, ours = kind.from_pretrained(folder, dtype=torch.float32), read_slm_checkpoint(folder)
    tokens, per_layer = (model.get_submodule(prefix_of(config) + name) for name in TABLES)
    assert_rows(token_table(ours), tokens(ALL_IDS))
    # sqrt(16) is a power of two, so it does not matter which factor comes first.
    assert_rows(per_layer_table(ours), per_layer(ALL_IDS) * 2**-0.5)
    assert [table(ours).bits for table in TABLES.values()] == [tokens.num_bits, per_layer.num_bits] == [2, 4]


def test_the_per_layer_table_in_groups(tmp_path: Path) -> None:
    """The released form, a scale for each layer, in the arithmetic of transformers' own module."""
    scales = torch.rand(VOCAB_SIZE, LAYERS) + 0.1
    ours = read_slm_checkpoint(write_slm(tmp_path, **{f"{NESTED}embed_tokens_per_layer.embedding_scale": scales}))
    module = QuantizedEmbedding(VOCAB_SIZE, LAYERS * PLE, torch.float32, PLE**0.5 * 2**-0.5, num_bits=4)
    packed = ours.reader.load(f"{NESTED}embed_tokens_per_layer.embedding_quantized")
    module.embedding_quantized = nn.Parameter(packed, requires_grad=False)
    module.embedding_scale = nn.Parameter(scales)
    assert_rows(per_layer_table(ours), module(ALL_IDS))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bits_come_from_the_bit_map(tmp_path: Path, bits: int) -> None:
    config = slm_config()
    rules = config["quantization_config"]["module_quant_configs"]
    rules["embed_tokens$"] = rules["embed_tokens_per_layer$"] = {"num_bits": bits}
    folder = write_slm(tmp_path, config)
    ours = read_slm_checkpoint(folder)
    model: Any = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    assert {table(ours).bits for table in TABLES.values()} == {bits}
    assert_rows(token_table(ours), model.get_submodule(NESTED + "embed_tokens")(ALL_IDS))


def test_tables_are_the_files_bytes_and_nothing_is_read_on_opening(tmp_path: Path) -> None:
    folder = write_slm(tmp_path)
    ours = read_slm_checkpoint(folder)
    for name, open_table in TABLES.items():
        table = open_table(ours)
        assert isinstance(table.codes, np.memmap)
        assert isinstance(table.scale, np.memmap)
        stored = ours.reader.load(f"{NESTED}{name}.embedding_quantized")
        assert table.codes.tobytes() == stored.numpy().tobytes()
        table.save(tmp_path / "saved")
        saved = PackedTable.load(tmp_path / "saved")
        assert saved.codes.tobytes() == stored.numpy().tobytes()
        assert (saved.bits, saved.width, saved.factor) == (table.bits, table.width, table.factor)
    table, before = token_table(ours), token_table(ours).codes.tobytes()
    # What is written to the file after opening shows; an array that had been read would not change.
    invert_token_codes(folder)
    after = read_slm_checkpoint(folder).reader.load(f"{NESTED}embed_tokens.embedding_quantized")
    assert table.codes.tobytes() == after.numpy().tobytes() != before


def invert_token_codes(folder: Path) -> None:
    """Invert every byte of the token table's codes in the file itself."""
    reader, path = read_slm_checkpoint(folder).reader, folder / "model.safetensors"
    codes = reader.load(f"{NESTED}embed_tokens.embedding_quantized").numpy()
    start = path.read_bytes().index(codes.tobytes())
    with path.open("r+b") as file:
        file.seek(start)
        file.write((~codes).tobytes())


def test_each_table_has_its_own_end(tmp_path: Path) -> None:
    ours = read_slm_checkpoint(write_slm(tmp_path, slm_config({"vocab_size_per_layer_input": 48})))
    assert token_table(ours).lookup(np.array([63])).shape == (1, HIDDEN)
    assert per_layer_table(ours).lookup(np.array([47])).shape == (1, LAYERS * PLE)
    for table, token_id in ((per_layer_table(ours), 48), (per_layer_table(ours), -1), (token_table(ours), 64)):
        with pytest.raises(TokenIdError, match=f"token id {token_id} is not in the table"):
            table.lookup(np.array([token_id]))
