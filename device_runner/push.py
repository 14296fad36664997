"""Bringing a folder to the device so that what lies there is what was sent.

    compare (sha256) -> room (df) -> each missing file: push NAME.hyco-part -> compare size and sha256 -> move to NAME

A file appears under its name only after it was compared. A push that broke off is resumed by the next one: finished
files are skipped, a partial one is removed. This module does not know what the files are for.
"""

from __future__ import annotations

import logging
import posixpath
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.errors import DeviceError, NoSpaceError, PushError
from device_runner.remote_files import RemoteFile, describe_file, describe_remote, free_bytes, make_folders, remove
from device_runner.transport import Command, Timeout, Transport
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOG = logging.getLogger(__name__)

PUSH_ROOT = "hyco-npu"
"""The folder below a transport's work_dir that holds all pushed ones."""

_CALL = Timeout(60.0)
_PARTIAL = ".hyco-part"
# Each file takes whole blocks of the file system, and its name a place in a folder.
_OVERHEAD_BYTES = 8192


@dataclass(frozen=True)
class PushOptions:
    """How to push.

    name: the folder below WORK_DIR/hyco-npu. keep: leave it there at the end. call: the time of a short call.
    slowest_bytes_per_s: a transfer, and a checksum on the device, may take call plus its bytes at this rate.
    """

    name: str
    keep: bool = False
    call: Timeout = _CALL
    slowest_bytes_per_s: float = 2e6

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or "/" in self.name:
            raise UsageError(f"{self.name!r} is no name of a folder on the device")

    def transfer(self, size_bytes: int) -> Timeout:
        """The time that `size_bytes` may take."""
        return Timeout(self.call.total_s + size_bytes / self.slowest_bytes_per_s)


@dataclass(frozen=True)
class PushResult:
    """What a push did: names relative to the folder, in order; `size_bytes` counts the pushed files alone."""

    remote: str
    pushed: tuple[str, ...]
    skipped: tuple[str, ...]
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class _Target:
    """A file on its way: where it lies here, its path there, what it must become."""

    name: str
    local: Path
    remote: str
    expected: RemoteFile

    @property
    def partial(self) -> str:
        return f"{self.remote}{_PARTIAL}"


@contextmanager
def pushed_folder(transport: Transport, folder: Path, options: PushOptions) -> Iterator[PushResult]:
    """Push a folder, and remove it from the device at the end unless `keep`; see `push_folder`.

    A failure inside the context is not hidden by one of the removal that follows from it (a link that is gone). What a
    failed push has sent stays, for the next one to go on; what its user interrupted goes.
    """
    try:
        result = push_folder(transport, folder, options)
    except (KeyboardInterrupt, SystemExit):
        if not options.keep:
            _remove_quietly(transport, [_place(transport, options)], options)
        raise
    try:
        yield result
    except BaseException:
        if not options.keep:
            _remove_quietly(transport, [result.remote], options)
        raise
    if not options.keep:
        remove(transport, [result.remote], options.call)


def push_folder(transport: Transport, folder: Path, options: PushOptions) -> PushResult:
    """Bring all files below `folder` to WORK_DIR/hyco-npu/NAME; files that are there already are not sent again.

    Files of the device that `folder` does not have stay. Raises:
        UsageError: the folder holds no file, or one with the name of a partial file.
        NoSpaceError: the files do not fit; found before anything is sent, or in the middle where others wrote too.
        PushError: a file arrived otherwise than it was sent.
    """
    started = time.monotonic()
    remote = _place(transport, options)
    targets = _targets(folder, remote)
    present = _present(transport, targets, options)
    missing = [target for target, there in zip(targets, present, strict=True) if there != target.expected]
    if missing:
        folders = sorted({posixpath.dirname(target.remote) for target in missing})
        make_folders(transport, folders, options.call)
        remove(transport, [target.partial for target in missing], options.call)
        _check_space(transport, remote, missing, options)
    for target in missing:
        _push_one(transport, target, options)
    sent = {target.name for target in missing}
    return PushResult(
        remote=remote,
        pushed=tuple(target.name for target in missing),
        skipped=tuple(target.name for target in targets if target.name not in sent),
        size_bytes=sum(target.expected.size_bytes for target in missing),
        seconds=time.monotonic() - started,
    )


def _place(transport: Transport, options: PushOptions) -> str:
    return posixpath.join(transport.work_dir, PUSH_ROOT, options.name)


def _targets(folder: Path, remote: str) -> list[_Target]:
    targets = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name.endswith(_PARTIAL):
            raise UsageError(f"{path} has the ending of unfinished files on the device, {_PARTIAL}: rename it")
        targets.append(_Target(name, path, posixpath.join(remote, name), describe_file(path)))
    if not targets:
        raise UsageError(f"{folder} holds no file to push")
    return targets


def _present(transport: Transport, targets: list[_Target], options: PushOptions) -> list[RemoteFile | None]:
    total = sum(target.expected.size_bytes for target in targets)
    return describe_remote(transport, [target.remote for target in targets], options.transfer(total))


def _check_space(transport: Transport, remote: str, missing: list[_Target], options: PushOptions) -> None:
    # A file that replaces another needs room beside it: it is moved into place only when complete.
    needed = sum(target.expected.size_bytes + _OVERHEAD_BYTES for target in missing)
    free = free_bytes(transport, remote, options.call)
    if needed > free:
        raise NoSpaceError(
            f"{transport.name} has {free:,} bytes free in {remote}, and {len(missing)} files need {needed:,}: free "
            "some space on it; nothing was sent"
        )


def _push_one(transport: Transport, target: _Target, options: PushOptions) -> None:
    _LOG.info("pushing %s (%.1f MB)", target.name, target.expected.size_bytes / 1e6)
    timeout = options.transfer(target.expected.size_bytes)
    try:
        transport.push_file(target.local, target.partial, timeout)
        arrived = describe_remote(transport, [target.partial], timeout)[0]
        if arrived != target.expected:
            raise PushError(_difference(target, arrived))
        transport.shell(Command(("mv", "-f", "--", target.partial, target.remote)), options.call).checked()
    except BaseException:
        _remove_quietly(transport, [target.partial], options)
        raise


def _difference(target: _Target, arrived: RemoteFile | None) -> str:
    if arrived is None:
        seen = "is not there"
    elif arrived.size_bytes != target.expected.size_bytes:
        seen = f"has {arrived.size_bytes:,} of {target.expected.size_bytes:,} bytes"
    else:
        seen = f"has sha256 {arrived.sha256}, not {target.expected.sha256}"
    return f"{target.name} {seen} after its push to {target.remote}: is the device full, or the cable bad?"


def _remove_quietly(transport: Transport, paths: list[str], options: PushOptions) -> None:
    """Remove after another failure, which is the one to report."""
    try:
        remove(transport, paths, options.call)
    except DeviceError as error:
        _LOG.warning("%s stays on %s: %s", ", ".join(paths), transport.name, error)
