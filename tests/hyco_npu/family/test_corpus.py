"""Documents, batches and varied numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyco_npu.family.corpus import (
    Document,
    encode_problem,
    epoch_batches,
    pad_batch,
    read_problems,
    vary_numbers,
)
from hyco_npu.family.tokenizer import train_tokenizer
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.integers(1, 300), min_size=1, max_size=80), st.integers(1, 2000), st.integers(0, 5))
def test_an_epoch_holds_every_document_once_and_no_batch_is_too_large(
    lengths: list[int], tokens_per_batch: int, seed: int
) -> None:
    batches = epoch_batches(lengths, tokens_per_batch, np.random.default_rng(seed))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens_per_batch


@given(st.text(alphabet="ab 0123456789.$%", max_size=60), st.integers(0, 5))
def test_varied_numbers_keep_the_text_and_the_digit_counts(question: str, seed: int) -> None:
    varied = vary_numbers(question, np.random.default_rng(seed))
    assert re.sub(r"\d", "0", varied) == re.sub(r"\d", "0", question)


def test_most_numbers_are_varied() -> None:
    question = " ".join(["1234567"] * 200)
    kept = vary_numbers(question, np.random.default_rng(0)).split().count("1234567")
    assert 40 <= kept <= 80  # 30 % of 200, three standard deviations either way


def test_padding_is_on_the_right_and_masked() -> None:
    ids, real = pad_batch([Document([7, 8], 1), Document([9, 10, 11, 12], 1)], max_length=3)
    assert torch.equal(ids, torch.tensor([[7, 8, 0], [9, 10, 11]]))
    assert torch.equal(real, torch.tensor([[True, True, False], [True, True, True]]))


def test_encoded_problem_is_the_chat_template_of_transformers() -> None:
    tokenizer = train_tokenizer(["How many apples has Tom? He has 5."])
    messages = [{"role": "user", "content": "How many apples has Tom?"}, {"role": "assistant", "content": "He has 57."}]
    document = encode_problem(tokenizer, "How many apples has Tom?", "He has 57.")
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True)["input_ids"]
    whole = tokenizer.apply_chat_template(messages)["input_ids"]
    assert document.ids[: document.prompt_length] == prompt
    assert document.ids == whole[: len(document.ids)]
    assert tokenizer.decode(whole[len(document.ids) :]) == "\n"
    assert document.ids[-1] == tokenizer.convert_tokens_to_ids("<turn|>") == 5
    assert encode_problem(tokenizer, "How many apples has Tom?").ids == prompt


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "q", "answer": "a"}\n{"question": "q"}\n', r"bad\.jsonl:2: needs 'question' and 'answer'"),
        ('{"question": "q", "answer": "a"}\n\n<html>\n', r"bad\.jsonl:3: not JSON"),
        ("[1]\n", r"bad\.jsonl:1: needs"),
        ("\n", r"bad\.jsonl holds no problem"),
    ],
)
def test_bad_corpus_names_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_problems(path)
