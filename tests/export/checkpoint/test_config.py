"""config.json, generation_config.json and the stop set (cases row 39)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from export.checkpoint.config import read_config, read_stop_set
from export.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Words:
    """A tokenizer as far as the stop set looks at it."""

    eos_token_id: int | None = None
    table: dict[str, int] = field(default_factory=dict)

    def get_vocab(self) -> dict[str, int]:
        return self.table


def write(folder: Path, config: object, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_the_wrong_model_type_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "llama"})
    with pytest.raises(CheckpointError, match=r"config\.json: model_type is 'llama', expected 'gemma4_assistant'"):
        read_config(tmp_path, "gemma4_assistant")
    write(tmp_path, {})
    with pytest.raises(CheckpointError, match="model_type is None, expected 'gemma4' or 'gemma4_text'"):
        read_config(tmp_path, "gemma4", "gemma4_text")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "<html>", "[" * 100_000])
def test_damaged_configs_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        read_config(tmp_path, "gemma4")


def test_an_absent_or_binary_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: absent"):
        read_config(tmp_path, "gemma4")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read as JSON"):
        read_config(tmp_path, "gemma4")


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 1}, None, (1,)),
        ({"eos_token_id": 1}, {"eos_token_id": [1, 106, 50]}, (1, 50, 106)),
        ({"eos_token_id": [1, 106]}, {"eos_token_id": 50}, (1, 50, 106)),
        ({}, {"eos_token_id": [106]}, (106,)),
        ({"eos_token_id": None}, {"eos_token_id": 1}, (1,)),
        ({"eos_token_id": [106], "text_config": {"eos_token_id": 1}}, {}, (1, 106)),
    ],
)
def test_the_stop_set_is_the_union(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    stops = read_stop_set(write(tmp_path, config, generation))
    assert stops.token_ids == expected
    assert expected[0] in stops
    assert 7 not in stops


def test_the_tokenizers_end_and_named_strings_join_the_set(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": 1}, {"eos_token_id": [50]})
    words = Words(eos_token_id=3, table={"<turn|>": 106, "<unk>": 0})
    assert read_stop_set(tmp_path, words, ["<turn|>"]).token_ids == (1, 3, 50, 106)


def test_a_stop_string_outside_the_vocabulary_is_no_unknown_token(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": 1})
    with pytest.raises(CheckpointError, match="'<end_of_turn>' is no token of the vocabulary"):
        read_stop_set(tmp_path, Words(table={"<unk>": 3}), ["<end_of_turn>"])
    with pytest.raises(CheckpointError, match="need a tokenizer"):
        read_stop_set(tmp_path, None, ["<end_of_turn>"])


@pytest.mark.parametrize("wrong", ["1", True, -1, 1.0, [1, None], 64])
def test_ids_that_are_none_are_refused(tmp_path: Path, wrong: object) -> None:
    write(tmp_path, {"eos_token_id": 1, "vocab_size": 64}, {"eos_token_id": wrong})
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id holds"):
        read_stop_set(tmp_path)


def test_a_text_without_any_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="would never end"):
        read_stop_set(write(tmp_path, {}, {"eos_token_id": []}))
