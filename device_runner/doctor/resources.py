"""Free disk space and memory for exports.

What an export needs depends on the checkpoint: the embedded family needs little, the figures for large ones are those
measured in docs/export-mtp.md and docs/export-slm.md.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from device_runner.doctor.check import Check, Finding, named, not_checked, ok, problem

FAMILY_DISK_BYTES = int(1e9)
E2B_DISK_BYTES = int(10e9)
"""By sum, not measured: graphs, compiled graphs and tables of E2B and a head (about 5 GB), twice while made."""

FAMILY_MEMORY_BYTES = int(2e9)
"""An assumption with room to spare: the libraries take most of it."""

E2B_MEMORY_BYTES = int(6.8e9)
"""The largest measured peak: the compiler on both SLM graphs (docs/export-slm.md)."""

_MEMINFO = Path("/proc/meminfo")
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def resource_checks() -> list[Check]:
    """All checks of this file."""
    return [disk_space(Path.cwd()), scratch_space(Path(tempfile.gettempdir())), memory()]


@named("disk, working folder")
def disk_space(folder: Path) -> Finding:
    """Where exports go by default."""
    return _space(folder, "free some, or write bundles elsewhere (--out)")


@named("disk, scratch folder")
def scratch_space(folder: Path) -> Finding:
    """Where graphs lie while they are compiled."""
    return _space(folder, "free some, or set TMPDIR to a larger disk")


@named("memory")
def memory(meminfo: Path = _MEMINFO) -> Finding:
    """What can be had without swapping."""
    if not meminfo.is_file():
        return not_checked(f"this system has no {meminfo}")
    found = _AVAILABLE.search(meminfo.read_text())
    if found is None:
        return not_checked(f"{meminfo} has no line MemAvailable")
    return _judged(int(found.group(1)) * 1024, FAMILY_MEMORY_BYTES, E2B_MEMORY_BYTES, "close programs, or add swap")


def _space(folder: Path, what_to_do: str) -> Finding:
    finding = _judged(shutil.disk_usage(folder).free, FAMILY_DISK_BYTES, E2B_DISK_BYTES, what_to_do)
    return Finding(finding.status, f"{finding.found} in {folder}", finding.what_to_do)


def _judged(available: int, family: int, e2b: int, what_to_do: str) -> Finding:
    free = f"{available / 1e9:.1f} GB available"
    if available < family:
        return problem(f"{free}, less than the {family / 1e9:.1f} GB for the embedded family", what_to_do)
    if available < e2b:
        return ok(
            f"{free}, enough for the embedded family", f"an E2B-sized export needs {e2b / 1e9:.1f} GB: {what_to_do}"
        )
    return ok(free)
