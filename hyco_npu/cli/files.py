"""Where a command may write: asked before the long work, so that nothing is lost at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def require_output_file(path: Path, option: str, suffix: str, *, force: bool) -> None:
    """Refuse a path where the file of `option` can or may not be written.

    Raises UsageError: another ending than `suffix`, no such folder, a folder of that name, a file without `force`.
    """
    if path.suffix != suffix:
        raise UsageError(f"{option} {path}: choose a name ending in {suffix}")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file")
    if path.exists() and not force:
        raise UsageError(f"{option}: {path} exists; choose another name, or replace it with --force")
