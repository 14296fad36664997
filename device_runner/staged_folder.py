"""A runner's folder appears whole or not at all: it is filled beside its place and renamed.

An exception, also Ctrl-C, removes what was begun. Only a killed process leaves `.NAME.xxxxxxxx.partial` behind.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.native_errors import RunnerFolderError
from device_runner.runner_folder import DESCRIPTION_NAME
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = logging.getLogger(__name__)


@contextmanager
def staged_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A new folder to fill; at the end of the block it is `out`.

    Raises UsageError, before anything is done, where `out` exists without `force`, and with `force` where it is not a
    runner's folder or holds files that its runner.json does not list; RunnerFolderError where it cannot be put there.
    """
    out = Path(os.path.abspath(out))
    require_destination(out, force=force)
    partial = out.parent / f".{out.name}.{secrets.token_hex(4)}.partial"
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot write to {out.parent} ({error.strerror}); choose another --out") from error
    try:
        yield partial
        require_destination(out, force=force)
        _move_into_place(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_destination(out: Path, *, force: bool) -> None:
    """Raise UsageError unless a runner's folder may be put at `out`."""
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise UsageError(f"{out} exists; choose another --out, or replace it with --force")
    listed = None if out.is_symlink() or not out.is_dir() else _listed(out)
    if listed is None:
        raise UsageError(f"{out} is not a runner's folder, and --force replaces nothing else; choose another --out")
    foreign = sorted(path.name for path in out.iterdir() if path.name not in listed)
    if foreign:
        raise UsageError(f"{out} holds {foreign[0]!r}, which no build wrote; move it away before using --force")


def _listed(folder: Path) -> frozenset[str] | None:
    """Names that a runner.json of any version lists, its own with them; None where there is none."""
    try:
        value = json.loads((folder / DESCRIPTION_NAME).read_text(encoding="utf-8"))
        if type(value["schema_version"]) is int and isinstance(value["runner"], str):
            return frozenset({DESCRIPTION_NAME, *(str(entry["path"]) for entry in value["files"])})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _move_into_place(folder: Path, out: Path) -> None:
    """Rename `folder` to `out`, an old `out` aside first."""
    old = folder.with_suffix(".old")
    try:
        if out.exists():
            os.rename(out, old)
        try:
            os.rename(folder, out)
        except BaseException:
            if old.exists():
                os.rename(old, out)
            raise
    except OSError as error:
        raise RunnerFolderError(f"cannot move the finished folder to {out} ({error}); choose another --out") from error
    shutil.rmtree(old, ignore_errors=True)
    if old.exists():
        _LOG.warning("the replaced folder could not be removed wholly and is now %s", old)
