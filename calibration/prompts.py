"""Prompt files: GSM8K and Spec-Bench JSON lines, or plain text with a prompt a line.

The form is read from each line's own keys, not from the file's name. Knows nothing of models; a tokenizer is passed in.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibration.errors import CalibrationError, PromptFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompt:
    """One question: the user's `turns` (one or more), with the reference `answer` and `category` where known."""

    id: str
    turns: tuple[str, ...]
    answer: str | None = None
    category: str | None = None


@dataclass(frozen=True)
class PromptFile:
    """The prompts of a file, with its name (no folder) and the SHA-256 of the bytes that they were read from."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read a prompt file: `.jsonl` holds a JSON object a line, anything else a prompt a line; blank lines are skipped.

    JSON objects have `question` and `answer` (GSM8K) or `question_id`, `category` and `turns` (Spec-Bench; `answer` is
    read where it is there). Prompts without an id of their own are called "<file stem>:<line>". Raises PromptFileError
    naming file and line.
    """
    return read_prompt_file(path).prompts


def read_prompt_file(path: Path) -> PromptFile:
    """`read_prompts` with the file's name and hash."""
    try:
        data = path.read_bytes()
        # not splitlines(): that also cuts at U+2028 and its kin, which JSON strings may hold
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise PromptFileError(f"{path} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{path} is not UTF-8 text (byte {error.start}); convert it") from error
    parse = _parse_json if path.suffix.lower() == ".jsonl" else _parse_text
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = parse(line, f"{path.stem}:{number}")
        except ValueError as error:
            raise PromptFileError(f"{path} line {number}: {error}") from error
        if prompt.id in prompts:
            raise PromptFileError(f"{path} line {number}: the id {prompt.id!r} was used before; ids must be unique")
        prompts[prompt.id] = prompt
    if not prompts:
        raise PromptFileError(f"{path} holds no prompt; give at least one line")
    return PromptFile(path.name, hashlib.sha256(data).hexdigest(), tuple(prompts.values()))


def joined_prompts(files: Sequence[PromptFile]) -> list[Prompt]:
    """All prompts of `files` in order. Raises PromptFileError where an id is in two of them."""
    owner: dict[str, str] = {}
    for file in files:
        for prompt in file.prompts:
            if prompt.id in owner:
                raise PromptFileError(
                    f"the id {prompt.id!r} is in {owner[prompt.id]} and in {file.name}; rename one of the files where "
                    "ids are made of their names, change one of the ids, or give the files one at a time"
                )
            owner[prompt.id] = file.name
    return [prompt for file in files for prompt in file.prompts]


def prompt_line(prompt: Prompt) -> str:
    """The prompt as a line of JSON that `read_prompts` reads back to the same prompt, with its line end."""
    fields = {
        "question_id": prompt.id,
        "category": prompt.category,
        "turns": list(prompt.turns),
        "answer": prompt.answer,
    }
    present = {key: value for key, value in fields.items() if value is not None}
    return json.dumps(present, ensure_ascii=False) + "\n"


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, *, chat: bool = True) -> list[int]:
    """Token ids of the first turn, through the chat template up to the model's reply, or as plain text.

    Raises CalibrationError if `chat` is asked of a tokenizer without a chat template.
    """
    if not chat:
        return [int(token) for token in tokenizer(prompt.turns[0])["input_ids"]]
    if tokenizer.chat_template is None:
        raise CalibrationError(
            f"prompt {prompt.id}: the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; "
            "add chat_template.jinja to its folder or encode plain text (chat=False)"
        )
    return chat_token_ids(tokenizer, [{"role": "user", "content": prompt.turns[0]}])


def chat_token_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a conversation through the tokenizer's chat template, up to the model's reply."""
    # two steps: the one-step form changed what it returns between transformers 4 and 5
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def _parse_text(line: str, default_id: str) -> Prompt:
    return Prompt(default_id, (line.strip(),))


def _parse_json(line: str, default_id: str) -> Prompt:
    """One JSON line; ValueError says what is wrong with it."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON object ({error})") from error
    if not isinstance(record, dict):
        raise ValueError(f"a JSON {type(record).__name__} where an object is needed")
    if "turns" in record:
        return _spec_bench(record, default_id)
    if "question" in record:
        return Prompt(default_id, (_text(record["question"], "question"),), _optional_text(record, "answer"))
    raise ValueError(f"keys {sorted(record)}; needs `question` (GSM8K) or `turns` (Spec-Bench)")


def _spec_bench(record: dict[str, Any], default_id: str) -> Prompt:
    turns = record["turns"]
    if not isinstance(turns, list) or not turns:
        raise ValueError("`turns` must be a list of at least one text")
    number = record.get("question_id", default_id)
    if isinstance(number, bool) or not isinstance(number, int | str):
        raise ValueError(f"`question_id` is {number!r}; a number or a text is needed")
    texts = tuple(_text(turn, "turns") for turn in turns)
    return Prompt(str(number), texts, _optional_text(record, "answer"), _optional_text(record, "category"))


def _optional_text(record: dict[str, Any], key: str) -> str | None:
    return None if record.get(key) is None else _text(record[key], key)


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{key}` holds {value!r} where a text is needed")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`{key}` holds half a surrogate pair, which no tokenizer takes") from error
    return value
