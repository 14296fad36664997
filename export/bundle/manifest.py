"""What a bundle says about itself: `manifest.json` as frozen pydantic models.

This module does not touch the disk: it knows neither whether the files exist nor where the folder lies. All paths are
relative to the bundle's folder, with forward slashes, so that a bundle can be moved, renamed and pushed to a phone.

A reader accepts the schema versions it knows. A field may be added only together with a new SCHEMA_VERSION, because
unknown fields are refused (a misspelt field would otherwise be lost without a word).
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

SCHEMA_VERSION: Final = 2
MANIFEST_NAME = "manifest.json"
NOT_MEASURED = "not measured"


def check_relative_path(path: str) -> str:
    """Return `path` if it names something inside the bundle's folder on every system; raise ValueError otherwise."""
    parts = path.split("/")
    windows = PureWindowsPath(path)
    if windows.drive or windows.root or PurePosixPath(path).is_absolute():
        raise ValueError(f"path {path!r} is absolute; paths in a bundle are relative to its folder")
    if ".." in parts:
        raise ValueError(f"path {path!r} leaves the bundle's folder")
    if "\\" in path or "\0" in path or any(part in ("", ".") for part in parts):
        raise ValueError(f"path {path!r} is not a plain relative path with forward slashes")
    return path


def _check_utc(moment: AwareDatetime) -> AwareDatetime:
    offset = moment.utcoffset()
    if offset is None or offset.total_seconds() != 0:
        raise ValueError(f"time {moment.isoformat()} is not in UTC")
    return moment


RelativePath = Annotated[str, AfterValidator(check_relative_path)]
Sha256 = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
Utc = Annotated[AwareDatetime, AfterValidator(_check_utc)]
PositiveScale = Annotated[FiniteFloat, Field(gt=0)]


class _Record(BaseModel):
    """Strict (no "4" for 4), frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SourceInfo(_Record):
    """A checkpoint: folder name or Hugging Face id, its revision, hash over its files, and the model's dimensions."""

    origin: str
    revision: str | None = None
    sha256: Sha256
    config: dict[str, JsonValue] = Field(default_factory=dict)


class KeepSetInfo(_Record):
    """The kept vocabulary: `size` token ids out of `vocab_size`; `sha256` is the keep set's own hash over its ids."""

    file: RelativePath
    size: PositiveInt
    sha256: Sha256
    vocab_size: PositiveInt

    @model_validator(mode="after")
    def _fits(self) -> KeepSetInfo:
        if self.size > self.vocab_size:
            raise ValueError(f"keep set holds {self.size} ids, more than the vocabulary's {self.vocab_size}")
        return self


class CalibrationInfo(_Record):
    """Where the activation ranges come from, for example "prompts:<sha256>", and the hash of the ranges."""

    source: str
    sha256: Sha256


class TensorInfo(_Record):
    """A graph input or output. `scale` and `zero_point` (per tensor) are both given, or both None for floats."""

    name: str
    dtype: str
    shape: tuple[PositiveInt, ...]
    scale: PositiveScale | None = None
    zero_point: int | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> TensorInfo:
        if (self.scale is None) != (self.zero_point is None):
            raise ValueError(f"tensor {self.name!r} has only one of scale and zero_point")
        return self


class GraphInfo(_Record):
    """One graph of `rows` token rows; `files` maps a role ("qdq", "context", "binary", ...) to its path."""

    name: str
    rows: PositiveInt
    files: dict[str, RelativePath]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    weight_bytes: NonNegativeInt
    nodes_on_npu: NonNegativeInt | None = None
    nodes_off_npu: NonNegativeInt | None = None


class TableInfo(_Record):
    """The embedding table for the CPU: `rows` rows of `width` codes of `bits` bits, `size_bytes` on disk."""

    file: RelativePath
    rows: PositiveInt
    width: PositiveInt
    bits: PositiveInt
    size_bytes: PositiveInt


class SlmInfo(_Record):
    """What an SLM's bundle has beside: which graph is which, and how the checkpoint's codes are stored."""

    draft_graph: str
    prefill_graph: str
    two_bit: Literal["int4", "native", "nbits"]
    head_bits: Literal[2, 4, 8]
    activation_clip: bool
    weight_bytes_by_kind: dict[str, NonNegativeInt]


class TargetStatus(_Record):
    """How far one chip got: compiled, run on the simulator, measured on a device (a text, or "not measured")."""

    target: str
    soc_model: PositiveInt
    htp_arch: str = Field(pattern=r"\Av[0-9]+\z")
    qnn_version: str | None = None
    compiled: bool
    simulated: bool
    measured_on_device: str = Field(default=NOT_MEASURED, min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> TargetStatus:
        if self.compiled and self.qnn_version is None:
            raise ValueError(f"target {self.target!r} is compiled, but its qnn_version is missing")
        if self.simulated and not self.compiled:
            raise ValueError(f"target {self.target!r} is simulated, but not compiled")
        return self


class FileInfo(_Record):
    """One file of the bundle: every file but manifest.json itself is listed."""

    path: RelativePath
    size_bytes: NonNegativeInt
    sha256: Sha256


class Manifest(_Record):
    """The whole of manifest.json.

    `window` counts cached positions; `bits` are those of the graphs' weights, None where they are mixed. `table` holds
    token embeddings, `per_layer_table` an SLM's per-layer ones.
    """

    schema_version: Literal[1, 2] = SCHEMA_VERSION
    kind: Literal["mtp", "slm"]
    created_utc: Utc
    tool_versions: dict[str, str]
    source: SourceInfo
    verifier: SourceInfo | None = None
    bits: Literal[2, 4, 8] | None
    window: PositiveInt
    position_rule: Literal["p", "p-1"]
    keep_set: KeepSetInfo
    calibration: CalibrationInfo
    seed: NonNegativeInt
    graphs: tuple[GraphInfo, ...]
    table: TableInfo | None = None
    per_layer_table: TableInfo | None = None
    slm: SlmInfo | None = None
    parity: dict[str, FiniteFloat] = Field(default_factory=dict)
    targets: tuple[TargetStatus, ...] = ()
    files: tuple[FileInfo, ...] = ()

    @model_validator(mode="after")
    def _unique_names(self) -> Manifest:
        for what, names in (
            ("graph", [graph.name for graph in self.graphs]),
            ("target", [target.target for target in self.targets]),
            ("file", [file.path for file in self.files]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]!r} is listed more than once")
        return self

    @model_validator(mode="after")
    def _slm_is_whole(self) -> Manifest:
        if self.schema_version == 1:
            if self.bits is None or self.slm is not None or self.per_layer_table is not None:
                raise ValueError("schema_version is 1, which knows neither mixed bits nor an SLM's fields")
        elif (self.kind == "slm") != (self.slm is not None):
            raise ValueError(f"kind is {self.kind!r}, but the field slm is {'absent' if self.slm is None else 'there'}")
        if self.slm is not None:
            names = {graph.name for graph in self.graphs}
            for name in (self.slm.draft_graph, self.slm.prefill_graph):
                if name not in names:
                    raise ValueError(f"slm names the graph {name!r}, which is not among {sorted(names)}")
        return self

    @property
    def referenced_paths(self) -> tuple[str, ...]:
        """Paths that graphs, table and keep set name, sorted: each must be among `files` of a finished bundle."""
        paths = {self.keep_set.file, *(path for graph in self.graphs for path in graph.files.values())}
        paths |= {table.file for table in (self.table, self.per_layer_table) if table is not None}
        return tuple(sorted(paths))

    def to_json(self) -> str:
        """JSON text, keys sorted, two blanks of indent, final newline: equal manifests give equal bytes."""
        value = self.model_dump(mode="json")
        return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Inverse of `to_json`; raises pydantic.ValidationError (the reader words it for the user)."""
        return cls.model_validate_json(text)
