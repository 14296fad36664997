"""Files of the verifier's answers: JSON lines with the tokens of prompt and response, and a description beside them.

A line has everything that its reader needs, so lines of several files may be joined. The description (`.meta.json`)
says where they come from and holds the file's hash. Knows nothing of tokenizers or models: ids only.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calibration.errors import ResponseFileError
from calibration.jsonfile import read_object, replace_file, write_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA_VERSION = 1
_MARK = "response_token_ids"


@dataclass(frozen=True)
class Response:
    """An answer to the first of `turns`: `prompt_token_ids` as the verifier read them, `response_token_ids` as written.

    A response ends with its stop token, or without one where it was cut at the greatest length. `verifier_sha256` is
    the hash of the checkpoint that wrote it.
    """

    id: str
    category: str | None
    turns: tuple[str, ...]
    prompt_token_ids: tuple[int, ...]
    response_token_ids: tuple[int, ...]
    response: str
    verifier_sha256: str

    @property
    def token_ids(self) -> list[int]:
        """Prompt and response as one sequence."""
        return [*self.prompt_token_ids, *self.response_token_ids]


@dataclass(frozen=True)
class ResponseFile:
    """The responses of a file, with its name (no folder) and the SHA-256 of its bytes."""

    name: str
    sha256: str
    responses: tuple[Response, ...]


def is_response_file(path: Path) -> bool:
    """Whether the first line of `path` is a response (and not, say, a prompt)."""
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return f'"{_MARK}"' in file.readline()


def read_responses(path: Path) -> ResponseFile:
    """Read a file of responses, which must be the one that its description beside it records, if there is one.

    Raises ResponseFileError naming file and line.
    """
    try:
        data = path.read_bytes()
        lines = data.decode().split("\n")
    except OSError as error:
        raise ResponseFileError(f"{path} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ResponseFileError(f"{path} is not UTF-8 text (byte {error.start}); generate it again") from error
    sha256 = hashlib.sha256(data).hexdigest()
    description = description_path(path)
    if description.is_file():
        recorded = read_object(description, SCHEMA_VERSION, ResponseFileError).get("sha256")
        if recorded != sha256:
            raise ResponseFileError(
                f"{path} has the hash {sha256}, {description.name} records {recorded}: it was changed since; generate "
                "it again, or remove the description if the change is meant"
            )
    responses = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                responses.append(_parse(line))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ResponseFileError(f"{path} line {number}: no response ({error!r}); generate it again") from error
    if not responses:
        raise ResponseFileError(f"{path} holds no response")
    return ResponseFile(path.name, sha256, tuple(responses))


def require_verifier(file: ResponseFile, sha256: str) -> None:
    """Raise ResponseFileError unless the checkpoint with this hash wrote every response of `file`."""
    for response in file.responses:
        if response.verifier_sha256 != sha256:
            raise ResponseFileError(
                f"{file.name}: response {response.id!r} is of the verifier {response.verifier_sha256}, not of the one "
                f"that is given, {sha256}; generate responses with this verifier, or give the one that wrote them"
            )


def write_responses(path: Path, responses: Sequence[Response], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Write the responses, a line each, and the description with `origin` and counts beside them; returns the latter.

    The description comes first and the responses last: where they are, both are.
    """
    lines = [
        json.dumps({"schema_version": SCHEMA_VERSION, **asdict(response)}, ensure_ascii=False) for response in responses
    ]
    data = "".join(f"{line}\n" for line in lines).encode()
    described = {
        "schema_version": SCHEMA_VERSION,
        "sha256": hashlib.sha256(data).hexdigest(),
        "responses": len(responses),
        "prompt_tokens": sum(len(response.prompt_token_ids) for response in responses),
        "response_tokens": sum(len(response.response_token_ids) for response in responses),
        **origin,
    }
    write_object(description_path(path), described)
    replace_file(path, data)
    return described


def description_path(path: Path) -> Path:
    """Where the description of the responses at `path` lies."""
    return path.with_suffix(".meta.json")


def _parse(line: str) -> Response:
    fields = json.loads(line)
    if fields["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version {fields['schema_version']!r}, this version reads {SCHEMA_VERSION}")
    texts = fields["id"], fields["response"], fields["verifier_sha256"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(fields["category"], str | None):
        raise ValueError("id, category, response and verifier_sha256 must be texts")
    return Response(
        id=fields["id"],
        category=fields["category"],
        turns=tuple(fields["turns"]),
        prompt_token_ids=_ids(fields, "prompt_token_ids"),
        response_token_ids=_ids(fields, _MARK),
        response=fields["response"],
        verifier_sha256=fields["verifier_sha256"],
    )


def _ids(fields: Mapping[str, Any], key: str) -> tuple[int, ...]:
    ids = fields[key]
    if not isinstance(ids, list) or not ids or not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise ValueError(f"{key} must be a list of at least one token id")
    return tuple(ids)
