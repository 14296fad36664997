"""Streaming: pieces add up to the tokenizer's own decoding, also where characters are cut by tokens."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from hyco_npu.decode.text import TextStream
from hyco_npu.family import VERIFIER_DIR


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(VERIFIER_DIR, local_files_only=True)


@pytest.mark.parametrize(
    "text", ["Tom has 3 apples.\n\n#### 3", "Preis: 5 €, naïve – 猫 🐈 end", "  leading and trailing "]
)
@pytest.mark.parametrize("step", [1, 2, 5])
def test_pieces_add_up_to_the_text(tokenizer: Any, text: str, step: int) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    pieces = [stream.push(ids[start : start + step]) for start in range(0, len(ids), step)]
    whole = "".join(pieces) + stream.finish()
    assert whole == tokenizer.decode(ids, skip_special_tokens=True)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_text_that_ends_inside_a_character_is_shown_as_it_is(tokenizer: Any) -> None:
    ids = tokenizer("🐈", add_special_tokens=False)["input_ids"][:-1]
    stream = TextStream(tokenizer)
    assert stream.push(ids) + stream.finish() == tokenizer.decode(ids, skip_special_tokens=True)
