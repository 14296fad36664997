"""The shape that all our small result files share: one JSON object with `schema_version` and `sha256`.

Knows nothing of what the objects mean; the caller names the error that its users see.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from quant.errors import HycoError


def write_object(path: Path, fields: Mapping[str, Any]) -> None:
    """Write `fields` as one JSON object; `path` is replaced in one step and never half written."""
    replace_file(path, (json.dumps(fields, allow_nan=False) + "\n").encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one step: whoever reads finds the old file or the whole new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def read_object(path: Path, schema_version: int, error: type[HycoError]) -> dict[str, Any]:
    """Read a JSON object of `schema_version`; raises `error` for an absent, unreadable or other file."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror}; check the path") from cause
    except (ValueError, RecursionError) as cause:
        raise error(f"{path} is not a JSON file ({cause}); write it again") from cause
    if not isinstance(fields, dict):
        raise error(f"{path} holds a JSON {type(fields).__name__} where an object is needed")
    found = fields.get("schema_version")
    if found != schema_version:
        raise error(f"{path} has schema_version {found!r}, this version reads {schema_version}; write it again")
    return fields
