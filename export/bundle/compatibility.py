"""Does this bundle fit this device and this keep set? Refused here, on the host, before anything is pushed.

A context binary made for another Hexagon architecture, or by a newer QNN than the phone has, ends the process on the
phone without an exception, or late (onnxruntime issues 23431 and 26163).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from export.errors import BundleError

if TYPE_CHECKING:
    from export.bundle.manifest import TargetStatus
    from export.bundle.reader import Bundle


@dataclass(frozen=True)
class RuntimeTarget:
    """What is going to run the bundle: chip name ("sm8850"), QNN's soc_model (87), Hexagon architecture ("v81") and
    the runtime's QNN version, None where it is not known yet."""

    target: str
    soc_model: int
    htp_arch: str
    qnn_version: str | None = None


class KeepSetIdentity(Protocol):
    """The part of calibration's KeepSet that identifies it."""

    @property
    def sha256(self) -> str:
        """Hash over the token ids."""

    @property
    def size(self) -> int:
        """Number of kept ids."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary that the ids index."""


def require_target(bundle: Bundle, runtime: RuntimeTarget) -> TargetStatus:
    """The bundle's entry for that chip, if its binary runs there.

    Raises BundleError where the bundle was not compiled for the chip, where soc_model or architecture differ, and where
    the runtime's QNN is older than the one that compiled the binary (a newer runtime reads older binaries).
    """
    compiled = [status for status in bundle.manifest.targets if status.compiled]
    matching = [status for status in compiled if status.target == runtime.target]
    if not matching:
        known = ", ".join(status.target for status in compiled) or "no target"
        raise BundleError(
            f"bundle {bundle.folder} is compiled for {known}, not for {runtime.target}: "
            f"export with --target {runtime.target}"
        )
    status = matching[0]
    for what, stated, wanted in (
        ("soc_model", status.soc_model, runtime.soc_model),
        ("htp_arch", status.htp_arch, runtime.htp_arch),
    ):
        if stated != wanted:
            raise BundleError(
                f"bundle {bundle.folder}: {what} for {status.target} is {stated}, the device's is {wanted}: "
                f"export again with --target {runtime.target}"
            )
    if runtime.qnn_version is not None:
        _require_qnn(bundle, status, runtime.qnn_version)
    return status


def require_keep_set(bundle: Bundle, keep_set: KeepSetIdentity) -> None:
    """Raise BundleError unless `keep_set` is the one that the graph's output columns were cut to."""
    info = bundle.manifest.keep_set
    for what, found, stated in (
        ("vocabulary size", keep_set.vocab_size, info.vocab_size),
        ("number of ids", keep_set.size, info.size),
        ("sha256", keep_set.sha256, info.sha256),
    ):
        if found != stated:
            raise BundleError(
                f"bundle {bundle.folder}: the keep set's {what} is {found}, the manifest says {stated}: "
                f"use the bundle's own {info.file}, or export again with this keep set"
            )


def _require_qnn(bundle: Bundle, status: TargetStatus, runtime_version: str) -> None:
    stamped = status.qnn_version or ""  # a compiled entry always has one: checked by the manifest
    if parse_version(runtime_version) < parse_version(stamped):
        raise BundleError(
            f"bundle {bundle.folder}: the binary for {status.target} was compiled by QNN {stamped}, the runtime is "
            f"QNN {runtime_version}: update the runtime to {stamped} or newer, or export with an older QNN"
        )


def parse_version(text: str) -> tuple[int, int, int]:
    """(major, minor, patch) of "2.51", "v2.51.0" or "v2.51.0.260115"; raises BundleError where there are no numbers.

    The build number after the patch level is a date and does not decide compatibility, so it is left out.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?![0-9])", text.strip())
    if match is None:
        raise BundleError(f"QNN version {text!r} cannot be read: expected a text like 2.51.0")
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)
