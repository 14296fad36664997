"""Open a bundle and check its files against the manifest, on the host, before anything is loaded or pushed.

`open_bundle` reads the manifest only (milliseconds); `verify_files` reads every byte. Neither loads a model, and
neither knows the device: see compatibility.py for that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from calibration.errors import KeepSetError
from calibration.keepset import KeepSet
from export.bundle.manifest import MANIFEST_NAME, SCHEMA_VERSION, FileInfo, GraphInfo, Manifest, check_relative_path
from export.bundle.onnx_files import io_names, missing_external_files, read_skeleton
from export.errors import BundleError
from export.hashing import sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterator

ProblemKind = Literal["missing", "size", "sha256", "unlisted", "outside", "onnx", "names", "keep_set"]
_CHECKED_ROLES = ("qdq", "context")  # graphs whose boundary is the one that the manifest describes
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its folder and its manifest (already validated; the files are not yet checked)."""

    folder: Path
    manifest: Manifest

    def path(self, relative: str) -> Path:
        """Absolute path of a file of the bundle; raises BundleError if it leads outside, also through a link."""
        try:
            full = self.folder / check_relative_path(relative)
        except ValueError as error:
            raise BundleError(f"bundle {self.folder}: {error}") from error
        if not full.resolve().is_relative_to(self.folder.resolve()):
            raise BundleError(f"bundle {self.folder}: {relative!r} is a link that leaves the bundle's folder")
        return full

    def graph(self, name: str) -> GraphInfo:
        """The graph of that name; raises BundleError naming those that exist."""
        for graph in self.manifest.graphs:
            if graph.name == name:
                return graph
        known = ", ".join(graph.name for graph in self.manifest.graphs) or "none"
        raise BundleError(f"bundle {self.folder} has no graph {name!r}; it has: {known}")

    def graph_file(self, name: str, role: str) -> Path:
        """Path of a graph's file for a role such as "qdq" or "context"; raises BundleError where there is none."""
        files = self.graph(name).files
        if role not in files:
            known = ", ".join(sorted(files)) or "none"
            raise BundleError(f"bundle {self.folder}: graph {name!r} has no {role!r} file; it has: {known}")
        return self.path(files[role])


@dataclass(frozen=True)
class FileProblem:
    """One file that is not as the manifest says; `str()` is one line for the user."""

    path: str
    kind: ProblemKind
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


def open_bundle(folder: Path | str) -> Bundle:
    """Read and validate a bundle's manifest.

    Raises BundleError: no such folder, a bare .onnx instead of the folder (naming the external data that it lacks),
    no manifest, manifest not JSON or not valid, a schema version that this release does not know.
    """
    folder = Path(folder)
    if folder.is_file():
        raise BundleError(_explain_bare_file(folder))
    if not folder.is_dir():
        raise BundleError(f"no bundle at {folder}: there is no such folder")
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise BundleError(f"{folder} is not a bundle: it has no {MANIFEST_NAME}; create one with `hyco-npu export`")
    return Bundle(folder, _parse_manifest(path))


def verify_files(bundle: Bundle) -> list[FileProblem]:
    """Compare every file with the manifest: missing, size, SHA-256, unlisted, links that lead outside; then, for each
    .onnx, its external data and its input and output names; and the keep set, which must be the one that graphs and
    tables were cut to, also where its file is listed as it is. An empty list means intact."""
    problems = [problem for info in bundle.manifest.files if (problem := _check_file(bundle, info)) is not None]
    problems += _unlisted(bundle)
    unusable = {problem.path for problem in problems if problem.kind in ("missing", "outside")}
    listed = [info.path for info in bundle.manifest.files if info.path.endswith(".onnx")]
    for name in listed:
        if name not in unusable:
            problems += _check_onnx(bundle, name)
    if bundle.manifest.keep_set.file not in {problem.path for problem in problems}:
        problems += _check_keep_set(bundle)
    return problems


def require_intact(bundle: Bundle) -> None:
    """Raise BundleError naming the first files that are not as the manifest says."""
    problems = verify_files(bundle)
    if not problems:
        return
    lines = [f"  {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        lines.append(f"  and {len(problems) - _SHOWN_PROBLEMS} more")
    raise BundleError(
        f"bundle {bundle.folder} is damaged; copy the whole folder again or export it again:\n" + "\n".join(lines)
    )


def _explain_bare_file(path: Path) -> str:
    if path.suffix != ".onnx":
        return f"{path} is a file; a bundle is a folder with a {MANIFEST_NAME}: pass the folder"
    missing = missing_external_files(path)
    if missing:
        names = ", ".join(missing)
        return f"{path} needs {names}, which does not lie beside it: copy the whole bundle folder and pass that"
    return f"{path} is a single graph; a bundle is a folder with a {MANIFEST_NAME}: pass the folder"


def _parse_manifest(path: Path) -> Manifest:
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not JSON ({error}); copy the bundle again or export it again") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise BundleError(f"{path} is not a bundle's manifest: schema_version is {version!r}, expected an integer >= 1")
    if version > SCHEMA_VERSION:
        raise BundleError(
            f"{path} has schema_version {version}; this release reads up to {SCHEMA_VERSION}: install a newer hyco-npu"
        )
    try:
        manifest = Manifest.from_json(text)
    except ValidationError as error:
        raise BundleError(f"{path} is not a valid manifest: {_describe(error)}") from error
    unlisted = set(manifest.referenced_paths) - {info.path for info in manifest.files}
    if unlisted:
        raise BundleError(f"{path} names {sorted(unlisted)[0]!r}, but does not list it among its files")
    return manifest


def _describe(error: ValidationError) -> str:
    places = []
    for item in error.errors()[:_SHOWN_PROBLEMS]:
        where = ".".join(str(part) for part in item["loc"])
        places.append(f"{where}: {item['msg']}" if where else item["msg"])
    return "; ".join(places)


def _check_file(bundle: Bundle, info: FileInfo) -> FileProblem | None:
    try:
        path = bundle.path(info.path)
    except BundleError as error:
        return FileProblem(info.path, "outside", str(error))
    if not path.is_file():
        return FileProblem(info.path, "missing", "missing")
    size = path.stat().st_size
    if size != info.size_bytes:
        return FileProblem(info.path, "size", f"{size} bytes, the manifest says {info.size_bytes}")
    digest = sha256_file(path)
    if digest != info.sha256:
        return FileProblem(info.path, "sha256", f"sha256 {digest}, the manifest says {info.sha256}")
    return None


def files_in(folder: Path) -> Iterator[str]:
    """Relative paths, with forward slashes and sorted, of all that is not a folder under `folder`; links included."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    yield from sorted(path.relative_to(folder).as_posix() for path in found)


def _unlisted(bundle: Bundle) -> list[FileProblem]:
    listed = {info.path for info in bundle.manifest.files} | {MANIFEST_NAME}
    extra = (name for name in files_in(bundle.folder) if name not in listed)
    return [FileProblem(name, "unlisted", "not listed in the manifest: remove it") for name in extra]


def _check_keep_set(bundle: Bundle) -> Iterator[FileProblem]:
    info = bundle.manifest.keep_set
    try:
        found = KeepSet.load(bundle.path(info.file), info.vocab_size, (), expected_sha256=info.sha256)
    except KeepSetError as error:
        yield FileProblem(info.file, "keep_set", f"not the keep set that this bundle was made with: {error}")
        return
    if found.size != info.size:
        yield FileProblem(info.file, "keep_set", f"{found.size} token ids, the manifest says {info.size}")


def _check_onnx(bundle: Bundle, name: str) -> Iterator[FileProblem]:
    path = bundle.path(name)
    try:
        missing = missing_external_files(path)
        inputs, outputs = io_names(read_skeleton(path))
    except BundleError as error:
        yield FileProblem(name, "onnx", str(error))
        return
    if missing:
        yield FileProblem(name, "onnx", f"needs {', '.join(missing)}, which does not lie beside it")
    for graph in bundle.manifest.graphs:
        if name not in (graph.files.get(role) for role in _CHECKED_ROLES):
            continue
        stated = frozenset(t.name for t in graph.inputs), frozenset(t.name for t in graph.outputs)
        for what, found, expected in zip(("inputs", "outputs"), (inputs, outputs), stated, strict=True):
            if found != expected:
                differing = ", ".join(sorted(found ^ expected))
                yield FileProblem(
                    name, "names", f"{what} of graph {graph.name!r} differ from the manifest: {differing}"
                )
