"""Prompt files: the shipped sets, the errors, and encoding by a tokenizer made here."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from calibration.errors import CalibrationError, PromptFileError
from calibration.prompts import Prompt, encode_prompt, joined_prompts, prompt_line, read_prompt_file, read_prompts

if TYPE_CHECKING:
    from pathlib import Path


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def word_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """Whole words as tokens: <unk> 0, <bos> 1, <user> 2, <model> 3, add 4, one 5."""
    words = ["<unk>", "<bos>", "<user>", "<model>", "add", "one"]
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<bos>")
    tokenizer.chat_template = chat_template
    return tokenizer


def test_gsm8k_is_read_whole(shared_dir: Path) -> None:
    path = shared_dir / "data" / "gsm8k" / "test.jsonl"
    prompts = read_prompts(path)
    assert len(prompts) == 1319
    assert prompts[0].id == "test:1"
    assert prompts[-1].id == "test:1319"
    first = json.loads(path.read_text().partition("\n")[0])
    assert prompts[0] == Prompt("test:1", (first["question"],), first["answer"])
    assert prompts[0].turns[0].startswith("Janet\u2019s ducks lay 16 eggs per day.")
    assert (prompts[0].answer or "").endswith("#### 18")


def test_spec_bench_is_read_whole(shared_dir: Path) -> None:
    prompts = read_prompts(shared_dir / "data" / "spec_bench" / "question.jsonl")
    assert len(prompts) == 480
    assert [prompt.id for prompt in prompts[:2]] == ["81", "82"]
    assert prompts[-1].id == "560"
    assert prompts[0].category == "writing"
    assert len(prompts[0].turns) == 2
    assert prompts[0].turns[1] == "Rewrite your previous response. Start every sentence with the letter A."
    assert sum(prompt.category == "rag" for prompt in prompts) == 80
    assert sum(len(prompt.turns) == 2 for prompt in prompts) == 80


def test_plain_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "own.txt", "\ufeffWhat is 2 + 2?\r\n\r\n  Name a river.  \n")
    assert read_prompts(path) == (Prompt("own:1", ("What is 2 + 2?",)), Prompt("own:3", ("Name a river.",)))


def test_line_separators_inside_a_json_text_do_not_cut_it(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", '{"question": "one\u2028two\u0085three", "answer": "4"}\n\n{"turns": ["a"]}')
    assert read_prompts(path) == (Prompt("x:1", ("one\u2028two\u0085three",), "4"), Prompt("x:3", ("a",)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": ', "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ("[1]", "a JSON list where an object is needed"),
        ('{"prompt": "x"}', r"keys \['prompt'\]"),
        ('{"question": 3}', "`question` holds 3"),
        ('{"question": " "}', "`question` holds ' '"),
        ('{"question": "a", "answer": 7}', "`answer` holds 7"),
        ('{"question": "\\ud800"}', "half a surrogate pair"),
        ('{"turns": []}', "at least one text"),
        ('{"turns": "abc"}', "at least one text"),
        ('{"turns": ["a", null]}', "`turns` holds None"),
        ('{"turns": ["a"], "question_id": null}', "`question_id` is None"),
        ('{"turns": ["a"], "question_id": 1}', "id '1' was used before"),
    ],
)
def test_a_bad_line_is_named_with_its_file(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, "bad.jsonl", '{"turns": ["good"], "question_id": 1}\n' + line + "\n")
    with pytest.raises(PromptFileError, match=rf"bad\.jsonl line 2: .*{message}"):
        read_prompts(path)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    write(tmp_path, "empty.txt", "\n \n")
    for name, message in (("absent.txt", "No such file"), ("latin.txt", "byte 3"), ("empty.txt", "holds no prompt")):
        with pytest.raises(PromptFileError, match=rf"{name}.*{message}"):
            read_prompts(tmp_path / name)
    with pytest.raises(PromptFileError, match="directory"):
        read_prompts(tmp_path)


def test_chat_encoding_is_the_first_turn_and_the_opening_of_the_reply() -> None:
    template = (
        "{{ bos_token }} {% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}<model>{% endif %}"
    )
    prompt = Prompt("p", ("add one one", "one"))
    assert encode_prompt(word_tokenizer(template), prompt) == [1, 2, 4, 5, 5, 3]
    assert encode_prompt(word_tokenizer(template), prompt, chat=False) == [4, 5, 5]


def test_a_tokenizer_without_chat_template_says_so() -> None:
    prompt = Prompt("gsm:7", ("add one",))
    with pytest.raises(CalibrationError, match=r"prompt gsm:7: .*no chat template.*chat=False"):
        encode_prompt(word_tokenizer(None), prompt)
    assert encode_prompt(word_tokenizer(None), prompt, chat=False) == [4, 5]


def test_a_prompt_file_has_its_hash(tmp_path: Path) -> None:
    path = write(tmp_path, "own.txt", "\ufeffOne?\nTwo?")
    file = read_prompt_file(path)
    assert (file.name, file.sha256) == ("own.txt", hashlib.sha256(path.read_bytes()).hexdigest())
    assert file.prompts == read_prompts(path)


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt("81", ("Write.\nTwice.", "Again\u2028."), None, "writing"),
        Prompt("test:3", ("How many?",), "so many #### 3"),
        Prompt("x", ('\u00e9 \u4e2d \U0001f600 "',)),
    ],
)
def test_a_written_prompt_is_read_back(tmp_path: Path, prompt: Prompt) -> None:
    assert read_prompts(write(tmp_path, "x.jsonl", prompt_line(prompt))) == (prompt,)


def test_prompts_of_several_files_keep_their_order_and_their_ids_apart(tmp_path: Path) -> None:
    files = [read_prompt_file(write(tmp_path, name, f"one {name}\ntwo")) for name in ("b.txt", "a.txt")]
    assert [prompt.id for prompt in joined_prompts(files)] == ["b:1", "b:2", "a:1", "a:2"]
    with pytest.raises(PromptFileError, match=r"'b:1' is in b\.txt and in b\.txt"):
        joined_prompts([files[0], files[0]])
