"""Files of responses: there and back, and lines or files that must not be used."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from calibration.errors import ResponseFileError
from calibration.responses import (
    Response,
    description_path,
    is_response_file,
    read_responses,
    require_verifier,
    write_responses,
)

if TYPE_CHECKING:
    from pathlib import Path

ONE = Response("q:1", "math", ("How many\u2028ducks?", "Why?"), (2, 7, 9), (4, 1), "zwölf", "a" * 64)
TWO = replace(ONE, id="q:2", category=None, response="")


def test_there_and_back_with_a_description(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    described = write_responses(path, [ONE, TWO], {"seed": 3})
    file = read_responses(path)
    assert file.responses == (ONE, TWO)
    assert (file.name, file.sha256) == ("r.jsonl", hashlib.sha256(path.read_bytes()).hexdigest())
    assert described == json.loads((tmp_path / "r.meta.json").read_text())
    assert described == {
        "schema_version": 1,
        "sha256": file.sha256,
        "responses": 2,
        "prompt_tokens": 6,
        "response_tokens": 4,
        "seed": 3,
    }
    assert ONE.token_ids == [2, 7, 9, 4, 1]
    assert {item.name for item in tmp_path.iterdir()} == {"r.jsonl", "r.meta.json"}


def test_joined_files_are_read(tmp_path: Path) -> None:
    write_responses(tmp_path / "a.jsonl", [ONE], {})
    write_responses(tmp_path / "b.jsonl", [TWO], {})
    joined = tmp_path / "joined.jsonl"
    joined.write_bytes((tmp_path / "a.jsonl").read_bytes() + b"\n" + (tmp_path / "b.jsonl").read_bytes())
    assert read_responses(joined).responses == (ONE, TWO)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_responses(path, [ONE, TWO], {})
    path.write_text(path.read_text().replace("q:1", "q:3"))
    with pytest.raises(ResponseFileError, match=r"r\.jsonl has the hash .* r\.meta\.json records"):
        read_responses(path)
    description_path(path).unlink()
    assert read_responses(path).responses[0].id == "q:3"


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2},
        {"response_token_ids": []},
        {"response_token_ids": [1, -1]},
        {"response_token_ids": [1, 2.0]},
        {"prompt_token_ids": "12"},
        {"prompt_token_ids": [True]},
        {"id": 3},
        {"category": 3},
        {"verifier_sha256": None},
        {"turns": 3},
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "r.jsonl"
    write_responses(path, [ONE], {})
    description_path(path).unlink()
    line = path.read_text()
    path.write_text(line + json.dumps({**json.loads(line), **changes}) + "\n")
    with pytest.raises(ResponseFileError, match=r"r\.jsonl line 2: no response"):
        read_responses(path)


@pytest.mark.parametrize("data", [b"", b"\n", b"{", b"[]\n", b"\xff\n", b'{"turns": ["a prompt"]}\n', b"[" * 100_000])
def test_a_file_that_holds_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(data)
    with pytest.raises(ResponseFileError, match=r"r\.jsonl"):
        read_responses(path)
    with pytest.raises(ResponseFileError, match="No such file"):
        read_responses(tmp_path / "absent.jsonl")


def test_every_response_must_be_of_the_verifier(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_responses(path, [ONE, TWO], {})
    require_verifier(read_responses(path), "a" * 64)
    write_responses(path, [ONE, replace(TWO, verifier_sha256="b" * 64)], {})
    with pytest.raises(ResponseFileError, match=r"r\.jsonl: response 'q:2' is of the verifier b{64}, not .* a{64};"):
        require_verifier(read_responses(path), "a" * 64)


def test_prompts_and_responses_are_told_apart(tmp_path: Path) -> None:
    path, prompts = tmp_path / "r.jsonl", tmp_path / "p.jsonl"
    write_responses(path, [ONE], {})
    prompts.write_text('{"question": "What are response_token_ids?"}\n')
    assert is_response_file(path)
    assert not is_response_file(prompts)
    assert not is_response_file(tmp_path / "absent.jsonl")
