"""Recorded rounds: texts that a verifier wrote, as the device is to draft for them, with the verifier's states.

A safetensors file. Its metadata "recording" is JSON: `schema_version`, the decoding `config`, `calls` (none here) and
`events` in order. A text is a `begin` (text, fresh, token_ids, emitted, update), then pairs of `draft` (max_depth,
truth: the text's next tokens) and `commit` (accepted, emitted, update). Tensors `update.N.hidden`, `.embedding`,
`.keys_KIND` and `.values_KIND` [heads, rows, head_dim], float32, are the state of update N for the head. Metadata
"made" says of what the file was made, and holds the trees that the host drafted then.

Replayed, a drafter is led along the recorded text whatever it drafts, so every device is asked the same questions
(hyco_npu.bench.host). This module knows no models.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from calibration.jsonfile import replace_file
from device_runner.measurement import DraftedTree  # noqa: TC001 - pydantic reads the fields below
from hyco_npu.bench.errors import BenchError
from hyco_npu.decode.config import DecodeConfig
from hyco_npu.decode.protocols import HeadUpdate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SCHEMA_VERSION = 1
KINDS = ("sliding", "full")


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Begin(_Event):
    """A prompt and the first token behind it; `fresh`: a text of its own, not a further turn."""

    event: Literal["begin"] = "begin"
    text: int = Field(ge=0)
    fresh: bool = False
    token_ids: tuple[int, ...] = Field(min_length=1)
    emitted: tuple[int, ...] = Field(min_length=1, max_length=1)
    update: int = Field(ge=0)


class Draft(_Event):
    """A tree is asked for. `truth`: the tokens that follow in the text, where it goes on."""

    event: Literal["draft"] = "draft"
    max_depth: int = Field(ge=1)
    truth: tuple[int, ...] | None = None


class Commit(_Event):
    """What the verifier emitted. `accepted`: rows of the recording drafter's own tree."""

    event: Literal["commit"] = "commit"
    accepted: tuple[int, ...]
    emitted: tuple[int, ...] = Field(min_length=1)
    update: int = Field(ge=0)


Event = Begin | Draft | Commit
_EVENTS: TypeAdapter[tuple[Event, ...]] = TypeAdapter(tuple[Annotated[Event, Field(discriminator="event")], ...])


@dataclass(frozen=True)
class RecordedTrees:
    """The host's tree of every round at the recording, by which version, on what (cpu or simulator), out of which
    bundles: hashes of their manifests."""

    version: str
    reference: str
    mtp_sha256: str
    slm_sha256: str
    trees: tuple[DraftedTree, ...]

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """All but the trees."""
        return self.version, self.reference, self.mtp_sha256, self.slm_sha256


@dataclass(frozen=True)
class Made:
    """Of what the rounds were made: the verifier's folder name, the prompts' file with its hash, each text's prompt."""

    verifier: str
    prompts: str
    prompts_sha256: str
    texts: tuple[str, ...]
    trees: RecordedTrees | None


@dataclass(frozen=True)
class Rounds:
    """An opened file. Updates are read from it when they are asked for."""

    path: Path
    sha256: str
    config: DecodeConfig
    events: tuple[Event, ...]
    made: Made | None

    @property
    def count(self) -> int:
        """Rounds: trees that are asked for."""
        return sum(isinstance(event, Draft) for event in self.events)

    @property
    def texts(self) -> int:
        """Texts."""
        return sum(isinstance(event, Begin) and event.fresh for event in self.events)

    def updates(self) -> Iterator[HeadUpdate]:
        """The update of every `begin` and `commit`, in their order.

        Raises BenchError for a state that the file lacks, or that is none.
        """
        with _opened(self.path) as file:
            for event in self.events:
                if not isinstance(event, Draft):
                    yield _update(file, event.update, self.path)


def write_rounds(
    path: Path, config: DecodeConfig, events: Sequence[Event], updates: Sequence[HeadUpdate], made: Made
) -> Rounds:
    """Write a file in one step and open it. `updates[n]` is what events call update n."""
    arrays: dict[str, np.ndarray] = {}
    for number, update in enumerate(updates):
        arrays |= update.named(number)
    tensors = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    recording = {
        "schema_version": SCHEMA_VERSION,
        "config": config.model_dump(mode="json"),
        "events": [event.model_dump(mode="json", exclude_none=True) for event in events],
        "calls": [],
    }
    metadata = {"recording": json.dumps(recording), "made": json.dumps(asdict(made))}
    replace_file(path, save(tensors, metadata))
    return load_rounds(path)


def load_rounds(path: Path) -> Rounds:
    """Open a file and check its form.

    Raises BenchError: absent, no safetensors file, no rounds, another schema, events out of order.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
        if "recording" not in metadata:
            raise BenchError(f'{path} holds no rounds (its metadata has no "recording"): {_HOW}')
        fields = _object(metadata["recording"], path)
        made = _parse_made(metadata["made"], path) if "made" in metadata else None
    if fields.get("schema_version") != SCHEMA_VERSION:
        raise BenchError(
            f"{path} has rounds of schema {fields.get('schema_version')!r}, this version reads {SCHEMA_VERSION}: {_HOW}"
        )
    try:
        config = DecodeConfig.model_validate(fields.get("config"))
        events = _EVENTS.validate_python(fields.get("events"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BenchError(f"{path}: {place}: {first['msg']}; {_HOW}") from error
    _require_order(events, path)
    with path.open("rb") as raw:
        digest = hashlib.file_digest(raw, "sha256").hexdigest()
    return Rounds(path, digest, config, events, made)


_HOW = "record them again with `hyco-npu bench`, which keeps them in its report"


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise BenchError(f"there is no file of rounds at {path}; leave --rounds out to record some")
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise BenchError(f"{path} is no safetensors file ({error}); {_HOW}") from error


def _object(text: str, path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path}: its metadata is not JSON ({error}); {_HOW}") from error
    if not isinstance(fields, dict):
        raise BenchError(f"{path}: its metadata is a JSON {type(fields).__name__}, not an object; {_HOW}")
    return fields


def _parse_made(text: str, path: Path) -> Made:
    try:
        return TypeAdapter(Made).validate_python(_object(text, path))
    except ValidationError as error:
        raise BenchError(
            f"{path}: what it says of its making cannot be read ({error.errors()[0]['msg']}); {_HOW}"
        ) from error


def _require_order(events: Sequence[Event], path: Path) -> None:
    """A text begins fresh; every draft is answered by the next event, and nothing else is answered."""
    before: Event | None = None
    for number, event in enumerate(events):
        if before is None:
            fits = isinstance(event, Begin) and event.fresh
        elif isinstance(before, Draft) or isinstance(event, Commit):
            fits = isinstance(before, Draft) and isinstance(event, Commit)
        else:
            fits = True
        if not fits:
            raise BenchError(f"{path}: event {number}, a {event.event}, does not belong there; {_HOW}")
        before = event
    if isinstance(before, Draft) or not any(isinstance(event, Draft) for event in events):
        raise BenchError(f"{path}: it holds no round, or its last one has no reply; {_HOW}")


def _update(file: Any, number: int, path: Path) -> HeadUpdate:
    prefix = f"update.{number}."
    arrays: dict[str, dict[str, np.ndarray]] = {"keys": {}, "values": {}}
    try:
        names = set(file.keys())
        for part, by_kind in arrays.items():
            for kind in KINDS:
                if (name := f"{prefix}{part}_{kind}") in names:
                    by_kind[kind] = _float(file.get_tensor(name), 3, name)
        hidden, embedding = (_float(file.get_tensor(prefix + name), 1, name) for name in ("hidden", "embedding"))
    except (SafetensorError, ValueError) as error:
        raise BenchError(f"{path}: the state of update {number} is not whole ({error}); {_HOW}") from error
    return HeadUpdate(hidden, embedding, **arrays)


def _float(array: np.ndarray, dimensions: int, name: str) -> np.ndarray:
    if array.dtype != np.float32 or array.ndim != dimensions:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, wanted float32 of {dimensions} dimensions")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return array
