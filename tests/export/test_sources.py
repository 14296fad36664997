"""Keep sets by file and by count, ranges by file, and when a verifier can run here."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from calibration.errors import CalibrationError, KeepSetError
from calibration.keepset import KeepSet
from calibration.ranges import Ranges
from export import sources
from export.errors import CheckpointError
from export.sources import (
    Vocabulary,
    copy_tokenizer,
    counted_keep_set,
    default_keep_size,
    given_keep_set,
    given_ranges,
    keep_set_size,
    load_tokenizer,
    read_vocabulary,
    vocabulary_in,
    why_not_runnable,
)
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

STOPS = (1, 7)
WITHOUT_TOKENIZER = Vocabulary(20, STOPS, None)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """<unk>, <bos> and the letters a to r as tokens 0 to 19; a prompt is its words."""
    words = {word: number for number, word in enumerate(["<unk>", "<bos>", *"abcdefghijklmnopqr"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<bos>")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return tokenizer


@given(st.integers(1, 300_000))
def test_default_size(vocabulary_size: int) -> None:
    size = default_keep_size(vocabulary_size)
    assert size == (86016 if vocabulary_size > 86016 else vocabulary_size * 3 // 4)


@pytest.mark.parametrize(("wanted", "size"), [(None, 15), ("2", 2), ("20", 20)])
def test_size(wanted: str | None, size: int) -> None:
    assert keep_set_size(wanted, WITHOUT_TOKENIZER) == size


@pytest.mark.parametrize("wanted", ["1", "21"])
def test_a_size_that_cannot_be(wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--keep-set {wanted} must lie between 2 required and 20 tokens"):
        keep_set_size(wanted, WITHOUT_TOKENIZER)


@given(st.lists(st.lists(st.integers(0, 19), max_size=12), min_size=1, max_size=6), st.integers(2, 20))
def test_counted_is_the_most_frequent_and_all_required(texts: list[list[int]], size: int) -> None:
    """Brute force: sort by count, then by id; stop tokens take their places whatever their count."""
    kept, origin = counted_keep_set(str(size), WITHOUT_TOKENIZER, texts, None)  # type: ignore[arg-type]
    counts = Counter(token for text in texts for token in text)
    others = sorted(set(range(20)) - set(STOPS), key=lambda token: (-counts[token], token))
    assert kept.token_ids.tolist() == sorted([*STOPS, *others[: size - len(STOPS)]])
    assert kept.vocab_size == 20
    assert origin == f"{size} most frequent"


def test_without_texts_the_default_prompts_are_counted(tmp_path: Path) -> None:
    """Special tokens <unk> and <bos> are kept though no prompt has them."""
    (tmp_path / "prompts.txt").write_text("c d r\nr d\nr\n")
    vocabulary = Vocabulary(20, STOPS, word_tokenizer())
    assert vocabulary.required_ids == {0, 1, 7}
    kept, origin = counted_keep_set("5", vocabulary, [], tmp_path / "prompts.txt")
    assert kept.token_ids.tolist() == [0, 1, 5, 7, 19]
    assert origin == "5 most frequent"


def test_without_texts_and_tokenizer_the_lowest_ids_are_kept(tmp_path: Path) -> None:
    kept, origin = counted_keep_set("4", WITHOUT_TOKENIZER, [], tmp_path / "absent.txt")
    assert kept.token_ids.tolist() == [0, 1, 2, 7]
    assert origin == "4 lowest ids: no tokenizer to count prompts with"


@pytest.mark.parametrize("wanted", [None, "5"])
def test_a_number_names_no_file(wanted: str | None) -> None:
    assert given_keep_set(wanted, WITHOUT_TOKENIZER) is None


def test_a_keep_set_of_a_file(tmp_path: Path) -> None:
    saved = KeepSet(np.array([1, 3, 7]), 20)
    saved.save(tmp_path / "keep.json")
    found = given_keep_set(str(tmp_path / "keep.json"), WITHOUT_TOKENIZER)
    assert found is not None
    assert found.sha256 == saved.sha256
    with pytest.raises(KeepSetError, match=r"required token ids \[2\] are not in the keep set"):
        given_keep_set(str(tmp_path / "keep.json"), Vocabulary(20, (1, 2), None))
    with pytest.raises(KeepSetError, match="is for 20 tokens, the target has 21"):
        given_keep_set(str(tmp_path / "keep.json"), Vocabulary(21, STOPS, None))


def test_stop_tokens_come_from_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 20, "eos_token_id": [7, 1]}))
    assert read_vocabulary(tmp_path, 20, None) == Vocabulary(20, (1, 7), None)


@pytest.mark.parametrize("calibration", [None, "synthetic"])
def test_no_ranges_are_given(calibration: str | None) -> None:
    assert given_ranges(calibration) is None


def test_ranges_and_prompts_of_a_file(tmp_path: Path) -> None:
    saved = Ranges({"x": (-1.0, 2.0)}, "synthetic:seed0")
    saved.save(tmp_path / "ranges.json")
    found = given_ranges(str(tmp_path / "ranges.json"))
    assert found is not None
    assert found.sha256 == saved.sha256
    (tmp_path / "prompts.jsonl").write_text("no JSON at all")
    assert given_ranges(str(tmp_path / "prompts.jsonl")) is None
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(CalibrationError):
        given_ranges(str(tmp_path / "damaged.json"))
    with pytest.raises(UsageError, match=r"--calibration .*absent\.json: no such file; give ranges \(\.json\)"):
        given_ranges(str(tmp_path / "absent.json"))


def write_model(folder: Path, *names: str) -> Path:
    save_file({name: torch.zeros(1000) for name in names}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("memory", "reason"), [(16_000, None), (15_999, "in float32 the verifier takes 0 GB of")])
def test_a_verifier_takes_at_most_half_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, reason: str | None
) -> None:
    """2,000 numbers of four bytes."""
    answers = {"SC_PHYS_PAGES": memory, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(sources, "os", SimpleNamespace(sysconf=answers.__getitem__))
    found = why_not_runnable(write_model(tmp_path, "model.layers.0.weight", "model.embed_tokens.weight"))
    assert (found or "").startswith(reason) if reason else found is None


def test_a_verifier_that_is_not_whole(tmp_path: Path) -> None:
    write_model(tmp_path, "model.embed_tokens.weight")
    assert why_not_runnable(tmp_path) == "the verifier's checkpoint holds only its embedding table"
    index = {"weight_map": {"a": "model-1.safetensors", "model.layers.0.weight": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    assert why_not_runnable(tmp_path) == "only the shard of the embedding table is here"


def test_a_tokenizer_is_copied_and_read(tmp_path: Path) -> None:
    word_tokenizer().save_pretrained(tmp_path / "from")
    (tmp_path / "from" / "model.safetensors").write_bytes(b"not a tokenizer's")
    (tmp_path / "to" / "tokenizer").mkdir(parents=True)
    copy_tokenizer(tmp_path / "from", lambda name: tmp_path / "to" / name)
    names = {path.name for path in (tmp_path / "to" / "tokenizer").iterdir()}
    assert names == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    tokenizer = load_tokenizer(tmp_path / "to" / "tokenizer")
    assert tokenizer is not None
    assert tokenizer("b a r")["input_ids"] == [3, 2, 19]


def test_without_a_tokenizer(tmp_path: Path) -> None:
    copy_tokenizer(None, lambda name: tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert load_tokenizer(None) is None


def test_byte_fallback_tokens_are_required(tmp_path: Path) -> None:
    words = {word: number for number, word in enumerate(["<unk>", "<0x00>", "<0x0A>", "<0xFF>", "<0x0a>", "<0x100>"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    vocabulary = Vocabulary(9, (7,), PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>"))
    assert vocabulary.required_by_reason == {"stop": {7}, "special": {0}, "byte_fallback": {1, 2, 3}}
    assert vocabulary.required_ids == {0, 1, 2, 3, 7}


@pytest.mark.parametrize("composite", [False, True])
def test_the_vocabulary_of_a_folder(tmp_path: Path, composite: bool) -> None:
    text = {"model_type": "gemma4_text", "vocab_size": 20, "eos_token_id": [7, 1]}
    config = {"model_type": "gemma4", "text_config": text} if composite else text
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="holds no tokenizer"):
        vocabulary_in(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    found = vocabulary_in(tmp_path)
    assert (found.size, found.stop_ids, found.required_ids) == (20, STOPS, {0, 1, 7})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_text", "eos_token_id": 1}))
    with pytest.raises(CheckpointError, match=r"config\.json: vocab_size is None"):
        vocabulary_in(tmp_path)
