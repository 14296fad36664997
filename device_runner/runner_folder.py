"""The runner's folder: the runner and every library that it opens, flat, with a runner.json that vouches for them.

`hyco-npu runner build` makes it; what measures on a device or serves from it reads it and pushes it as it is. Knows
nothing of where the files come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from calibration.jsonfile import read_object, replace_file
from device_runner.build import RUNNER
from device_runner.native_errors import RunnerFolderError
from export.hashing import sha256_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMA_VERSION: Literal[1] = 1
DESCRIPTION_NAME = "runner.json"
HOST_RUNNER, PHONE_RUNNER = Path("host.runner"), Path("phone.runner")
"""Where `hyco-npu runner build` puts a folder unless it is told."""
ORT = "libonnxruntime.so"
QNN_PROVIDER, QNN_BACKEND = "libonnxruntime_providers_qnn.so", "libQnnHtp.so"
_COMMAND = "`hyco-npu runner build`"
_SHOWN_PROBLEMS = 5
Abi = Literal["x86_64-linux", "aarch64-linux", "arm64-v8a"]
Provider = Literal["cpu", "simulator", "htp"]


class RunnerFile(BaseModel):
    """One file of the folder; `source` says where it came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    source: str

    @field_validator("path")
    @classmethod
    def _is_a_plain_name(cls, value: str) -> str:
        if value in ("", ".", "..", DESCRIPTION_NAME) or "/" in value or "\\" in value or "\0" in value:
            raise ValueError(f"{value!r} is not the plain name of a file beside {DESCRIPTION_NAME}")
        return value


class RunnerFacts(BaseModel):
    """What whoever assembles a folder knows of it.

    `qnn_build`: "v2.51.0.260929181845". `htp_archs`: those with a stub and a skeleton ("v81"). None and empty: unknown,
    or without QNN.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    abi: Abi
    ort_version: str | None
    qnn_build: str | None
    providers: tuple[Provider, ...] = Field(min_length=1)
    htp_archs: tuple[str, ...]


class RunnerDescription(RunnerFacts):
    """The content of runner.json."""

    schema_version: Literal[1]
    runner: str
    ort: str
    qnn_provider: str | None
    qnn_backend: str | None
    files: tuple[RunnerFile, ...]

    @model_validator(mode="after")
    def _names_its_own_files(self) -> RunnerDescription:
        listed = [file.path for file in self.files]
        if len(set(listed)) != len(listed):
            raise ValueError("a file is listed twice")
        for name in (self.runner, self.ort, self.qnn_provider, self.qnn_backend):
            if name is not None and name not in listed:
                raise ValueError(f"{name!r} is not among its files")
        if self.providers != ("cpu",) and (self.qnn_provider is None or self.qnn_backend is None):
            raise ValueError(f"providers {', '.join(self.providers)} need qnn_provider and qnn_backend")
        return self


@dataclass(frozen=True)
class RunnerFolder:
    """A loaded folder: its files are there and as long as runner.json says; `verify` reads their bytes."""

    folder: Path
    description: RunnerDescription

    @classmethod
    def load(cls, path: Path | str) -> RunnerFolder:
        """Raises RunnerFolderError: no folder, no valid runner.json, a file that is missing or of another size."""
        folder = Path(path)
        if not folder.is_dir():
            raise RunnerFolderError(f"no runner at {folder}: there is no such folder; make one with {_COMMAND}")
        file = folder / DESCRIPTION_NAME
        if not file.is_file():
            raise RunnerFolderError(
                f"{folder} is no runner's folder: it has no {DESCRIPTION_NAME}; make one with {_COMMAND}"
            )
        fields = read_object(file, SCHEMA_VERSION, RunnerFolderError)
        try:
            description = RunnerDescription.model_validate(fields)
        except ValidationError as error:
            raise RunnerFolderError(
                f"{file} is not valid ({_describe(error)}); make the folder again with {_COMMAND}"
            ) from error
        loaded = cls(folder, description)
        loaded._require(_other_size)
        return loaded

    def verify(self) -> None:
        """Raises RunnerFolderError naming the first file that is missing or whose SHA-256 is not the listed one."""
        self._require(_other_hash)

    @property
    def executable(self) -> Path:
        """The runner."""
        return self.folder / self.description.runner

    @property
    def ort(self) -> Path:
        """ONNX Runtime's library."""
        return self.folder / self.description.ort

    @property
    def qnn_provider(self) -> Path | None:
        """ONNX Runtime's QNN plugin provider; None in a folder for the CPU alone."""
        return None if self.description.qnn_provider is None else self.folder / self.description.qnn_provider

    @property
    def qnn_backend(self) -> Path | None:
        """QNN's HTP library (on x86: compiler and simulator); None in a folder for the CPU alone."""
        return None if self.description.qnn_backend is None else self.folder / self.description.qnn_backend

    @property
    def names(self) -> tuple[str, ...]:
        """All files, runner.json with them: what a device needs."""
        return (*(file.path for file in self.description.files), DESCRIPTION_NAME)

    def _require(self, problem: Callable[[Path, RunnerFile], str | None]) -> None:
        for file in self.description.files:
            path = self.folder / file.path
            what = problem(path, file) if path.is_file() else "is missing"
            if what is not None:
                raise RunnerFolderError(
                    f"{self.folder}: {file.path} {what}; make the folder again with {_COMMAND} or copy it again"
                )


def write_runner_folder(folder: Path, sources: Mapping[str, str], facts: RunnerFacts) -> RunnerFolder:
    """Describe the files that lie in `folder` in its runner.json; `sources`: name -> where it came from, for each.

    Raises RunnerFolderError where the runner or ONNX Runtime is not among them, or a file is not there.
    """
    absent = [name for name in (RUNNER, ORT, *sources) if name not in sources or not (folder / name).is_file()]
    if absent:
        raise RunnerFolderError(f"{folder} lacks {absent[0]}: a runner's folder cannot be described without it")
    files = []
    for name, source in sources.items():
        path = folder / name
        path.chmod(0o755 if name == RUNNER else 0o644)
        size_bytes = path.stat().st_size
        files.append(RunnerFile(path=name, size_bytes=size_bytes, sha256=sha256_file(path), source=source))
    description = RunnerDescription(
        schema_version=SCHEMA_VERSION,
        runner=RUNNER,
        ort=ORT,
        qnn_provider=QNN_PROVIDER if QNN_PROVIDER in sources else None,
        qnn_backend=QNN_BACKEND if QNN_BACKEND in sources else None,
        files=tuple(files),
        **facts.model_dump(),
    )
    replace_file(folder / DESCRIPTION_NAME, (description.model_dump_json(indent=1) + "\n").encode())
    return RunnerFolder(folder, description)


def _describe(error: ValidationError) -> str:
    problems = error.errors()[:_SHOWN_PROBLEMS]
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or DESCRIPTION_NAME}: {one['msg']}" for one in problems)


def _other_size(path: Path, file: RunnerFile) -> str | None:
    size_bytes = path.stat().st_size
    if size_bytes == file.size_bytes:
        return None
    return f"has {size_bytes} bytes, {DESCRIPTION_NAME} says {file.size_bytes}"


def _other_hash(path: Path, file: RunnerFile) -> str | None:
    digest = sha256_file(path)
    return None if digest == file.sha256 else f"has the SHA-256 {digest}, {DESCRIPTION_NAME} says {file.sha256}"
