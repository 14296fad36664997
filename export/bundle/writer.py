"""Write a bundle so that it is there whole or not at all.

Everything goes into a temporary folder beside the destination (same file system, so that the rename is atomic).
An exception, also Ctrl-C, removes it. Only a killed process leaves `.NAME.xxxxxxxx.partial` behind; nothing reads it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from export.bundle.aihub import METADATA_NAME, metadata_yaml
from export.bundle.manifest import MANIFEST_NAME, FileInfo, Manifest, check_relative_path
from export.bundle.onnx_files import missing_external_files
from export.bundle.reader import Bundle, files_in
from export.errors import BundleError
from export.hashing import sha256_file
from quant.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

_LOG = logging.getLogger(__name__)


class BundleWriter:
    """Context manager: add files, then `finish(manifest)` puts the bundle at `out`.

    Raises UsageError on entry where `out` exists without `force`, and with `force` where it is not a bundle or holds
    files that its manifest does not list: only what an export wrote is ever deleted.
    """

    def __init__(self, out: Path | str, *, force: bool = False) -> None:
        # Not resolve(): a link as `out` must be seen as a link.
        self._out = Path(os.path.abspath(out))
        self._force = force
        self._folder: Path | None = None
        self._made_parents: list[Path] = []

    def __enter__(self) -> BundleWriter:
        _check_destination(self._out, force=self._force)
        partial = _sibling(self._out, "partial")
        try:
            self._made_parents = _make_parents(self._out.parent)
            partial.mkdir()
        except OSError as error:
            self._remove()
            raise UsageError(f"cannot write to {self._out.parent} ({error}); choose another --out") from error
        self._folder = partial
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unfinished = self._folder is not None
        self._remove()
        if unfinished and kind is None:
            raise BundleError(f"the bundle {self._out} was left without being finished; nothing was written")

    def path(self, name: str) -> Path:
        """Where to write the bundle's file `name` (relative, forward slashes); its folder exists on return.

        Raises BundleError for a name that leaves the folder or that the writer itself writes.
        """
        if name in (MANIFEST_NAME, METADATA_NAME):
            raise BundleError(f"{name} is written by the bundle writer itself; choose another name")
        try:
            full = self._open_folder() / check_relative_path(name)
        except ValueError as error:
            raise BundleError(str(error)) from error
        full.parent.mkdir(parents=True, exist_ok=True)
        return full

    def add_file(self, source: Path, name: str | None = None) -> Path:
        """Copy a file into the bundle under `name` (default: its own name); raises BundleError if it is not there."""
        if not source.is_file():
            raise BundleError(f"{source} cannot be put into the bundle: there is no such file")
        return Path(shutil.copyfile(source, self.path(name or source.name)))

    def finish(self, manifest: Manifest) -> Bundle:
        """Hash all files, write metadata.yaml and manifest.json, flush to disk, and rename onto `out`.

        `manifest.files` is replaced by what lies in the folder. Raises BundleError where the manifest names a file that
        was not written, an .onnx lacks its external data, or the rename fails (the old bundle is then put back).
        """
        folder = self._open_folder()
        names = list(files_in(folder))
        _check_contents(folder, names, manifest)
        metadata = metadata_yaml(manifest, names)
        (folder / METADATA_NAME).write_text(metadata, encoding="utf-8", newline="\n")
        files = tuple(_describe(folder, name) for name in sorted([*names, METADATA_NAME]))
        complete = Manifest.model_validate({**dict(manifest), "files": files})
        (folder / MANIFEST_NAME).write_text(complete.to_json(), encoding="utf-8", newline="\n")
        _flush(folder)
        _check_destination(self._out, force=self._force)
        _move_into_place(folder, self._out)
        self._folder, self._made_parents = None, []
        return Bundle(self._out, complete)

    def _open_folder(self) -> Path:
        if self._folder is None:
            raise BundleError(f"the bundle {self._out} is not open for writing")
        return self._folder

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        for parent in reversed(self._made_parents):
            with contextlib.suppress(OSError):  # not empty: somebody else uses it by now
                parent.rmdir()
        self._made_parents = []


def _sibling(out: Path, ending: str) -> Path:
    return out.parent / f".{out.name}.{secrets.token_hex(4)}.{ending}"


def _make_parents(parent: Path) -> list[Path]:
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _check_destination(out: Path, *, force: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise UsageError(f"{out} exists; choose another --out, or replace it with --force")
    if out.is_symlink() or not out.is_dir():
        raise UsageError(f"{out} is not a folder; --force replaces only a bundle: choose another --out")
    listed = _listed_files(out)
    if listed is None:
        raise UsageError(f"{out} is not a bundle; --force replaces only a bundle: choose another --out")
    foreign = [name for name in files_in(out) if name not in listed]
    if foreign:
        raise UsageError(f"{out} holds {foreign[0]!r}, which no export wrote; move it away before using --force")


def _listed_files(folder: Path) -> frozenset[str] | None:
    """Names that a bundle's manifest, of any schema version, lists, with the manifest's own; None: not a bundle."""
    try:
        value = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        if type(value["schema_version"]) is int and value["kind"] in ("mtp", "slm"):
            return frozenset({MANIFEST_NAME, *(str(entry["path"]) for entry in value["files"])})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _check_contents(folder: Path, names: list[str], manifest: Manifest) -> None:
    absent = sorted(set(manifest.referenced_paths) - set(names))
    if absent:
        raise BundleError(f"the manifest names {absent[0]!r}, but that file was not written into the bundle")
    for name in names:
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise BundleError(f"{name!r} is a link or a special file; a bundle holds plain files only")
        missing = missing_external_files(path) if name.endswith(".onnx") else ()
        if missing:
            raise BundleError(f"{name!r} needs {', '.join(missing)}, which was not written into the bundle beside it")


def _describe(folder: Path, name: str) -> FileInfo:
    path = folder / name
    path.chmod(0o644)  # safetensors writes 0600, which a server's other users could not read
    return FileInfo(path=name, size_bytes=path.stat().st_size, sha256=sha256_file(path))


def _flush(folder: Path) -> None:
    """fsync all files and folders, so that the rename cannot become durable before the contents are."""
    for name in files_in(folder):
        with (folder / name).open("rb+") as file:
            os.fsync(file.fileno())
    for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        _flush_folder(inner)


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows cannot open a folder; there the rename alone has to do
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(folder: Path, out: Path) -> None:
    """Rename `folder` to `out`, an old `out` aside first; POSIX cannot swap two folders in one portable call."""
    old = _sibling(out, "old") if out.exists() else None
    try:
        if old is not None:
            os.rename(out, old)
        try:
            os.rename(folder, out)
        except BaseException:
            if old is not None:
                os.rename(old, out)
            raise
    except OSError as error:
        raise BundleError(f"cannot move the finished bundle to {out} ({error}); choose another --out") from error
    _flush_folder(out.parent)
    if old is not None:
        try:
            shutil.rmtree(old)
        except OSError as error:
            _LOG.warning("the replaced bundle could not be removed and is now %s: %s", old, error)
