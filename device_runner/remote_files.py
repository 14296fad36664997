"""Files of a device by running commands on it: what is there, how much fits, making and removing folders.

Written once for every transport. The scripts keep to what toybox on Android and coreutils on Linux share, take names as
arguments, and print one line a name, so that no name (blanks, quotes, line ends) can change what is read.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.errors import DeviceError, FactError
from device_runner.transport import Command, Timeout, Transport, excerpt, script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DESCRIBE = """
for f do
  if [ -d "$f" ]; then echo folder
  elif [ -e "$f" ]; then
    if s=$(stat -c %s "$f") && h=$(sha256sum < "$f"); then echo "$s ${h%% *}"; else echo unreadable; fi
  else echo absent
  fi
done
"""
_FILES_PER_CALL = 64
_DF_LINE = re.compile(r"\s(\d+)\s+\d+\s+(-?\d+)\s+\d+%\s")


@dataclass(frozen=True)
class RemoteFile:
    """A regular file of the device: its size in bytes and the sha256 of its content, in hex."""

    size_bytes: int
    sha256: str


def describe_file(path: Path) -> RemoteFile:
    """The same of a file of this machine."""
    with path.open("rb") as file:
        return RemoteFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def describe_remote(transport: Transport, paths: Sequence[str], timeout: Timeout) -> list[RemoteFile | None]:
    """Size and sha256 of each path, None where there is nothing; `timeout` holds for each 64 of them.

    Raises:
        DeviceError: a path is a folder or cannot be read, or the device cannot compute a sha256.
    """
    described: list[RemoteFile | None] = []
    for start in range(0, len(paths), _FILES_PER_CALL):
        chunk = paths[start : start + _FILES_PER_CALL]
        result = transport.shell(script(_DESCRIBE, *chunk), timeout)
        # Where stderr is part of stdout, its lines are longer than any of ours.
        lines = [line for line in result.checked().splitlines() if _is_description(line)]
        if len(lines) != len(chunk):
            raise DeviceError(
                f"{transport.name} described {len(lines)} of {len(chunk)} files: {excerpt(result.stdout)}"
            )
        described += [_parse_description(path, line, result.stderr) for path, line in zip(chunk, lines, strict=True)]
    return described


def free_bytes(transport: Transport, folder: str, timeout: Timeout) -> int:
    """Bytes that fit into an existing folder of the device.

    Raises:
        FactError: `df` printed something else than its table.
    """
    text = transport.shell(Command(("df", "-k", folder)), timeout).checked()
    # A long file system name may have a line of its own, so the figures are looked for in the whole text.
    found = _DF_LINE.findall(f"{text}\n")
    if not found:
        raise FactError(f"`df -k {folder}` of {transport.name} has no line of figures: {excerpt(text)}")
    return max(int(found[-1][1]), 0) * 1024


def make_folders(transport: Transport, folders: Sequence[str], timeout: Timeout) -> None:
    """Make folders and their parents; those that exist stay."""
    transport.shell(Command(("mkdir", "-p", "--", *folders)), timeout).checked()


def remove(transport: Transport, paths: Sequence[str], timeout: Timeout) -> None:
    """Remove files and whole folders below the transport's work_dir; those that do not exist are no error.

    Raises:
        DeviceError: a path is not below work_dir. Nothing is removed then.
    """
    for path in paths:
        if not posixpath.normpath(path).startswith(f"{transport.work_dir}/"):
            raise DeviceError(f"{path} is not below {transport.work_dir} and is not removed")
    if paths:
        transport.shell(Command(("rm", "-rf", "--", *paths)), timeout).checked()


def pull_verified(transport: Transport, remote: str, local: Path, timeout: Timeout) -> RemoteFile:
    """Pull a file and compare it with the device's; `timeout` holds for each of the two steps.

    Raises:
        DeviceError: it is absent, or another file arrived.
    """
    expected = describe_remote(transport, [remote], timeout)[0]
    if expected is None:
        raise DeviceError(f"{remote} does not exist on {transport.name}")
    transport.pull_file(remote, local, timeout)
    arrived = describe_file(local)
    if arrived != expected:
        local.unlink()
        raise DeviceError(f"{remote} arrived as {arrived}, but is {expected} on {transport.name}: pull it again")
    return arrived


def _is_description(line: str) -> bool:
    return line in ("folder", "unreadable", "absent") or re.fullmatch(r"\d+ [0-9a-f]{64}", line) is not None


def _parse_description(path: str, line: str, stderr: str) -> RemoteFile | None:
    if line == "absent":
        return None
    if line in ("folder", "unreadable"):
        raise DeviceError(f"{path} on the device is {line}, not a file that can be compared; {excerpt(stderr)}")
    size, _, sha256 = line.partition(" ")
    return RemoteFile(int(size), sha256)
