"""The bundles that are measured: the user's, or the embedded family's, exported once and kept in the cache.

The cache is $XDG_CACHE_HOME/hyco-npu/family (~/.cache without it). A folder there is named by a hash over this version,
the compiler's wheel, the family's weights and its prompts, and appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
from importlib import metadata
from typing import TYPE_CHECKING

from device_runner.cache import cache_path
from device_runner.staging import Pair
from export.bundle import open_bundle
from export.bundle.reader import verify_files
from export.engines.htp import why_unavailable
from export.errors import BundleError
from export.mtp.export import export_mtp
from export.slm.export import export_slm
from hyco_npu import __version__
from hyco_npu.defaults import mtp_export_options, slm_export_options
from hyco_npu.family import CALIBRATION_PROMPTS, FAMILY_DIR, HELD_OUT_PROMPTS
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from export.bundle.reader import Bundle

_LOG = logging.getLogger(__name__)
_NAMES = ("mtp", "slm")


def chosen_pairs(
    mtp: Path | None, slm: Path | None, against: Path | None, progress: Callable[[str], None]
) -> tuple[Pair, ...]:
    """Pair A of the named bundles, the family's for those that are not; with `against`, pair B, which has that bundle
    in the place of A's of its kind.

    Raises BundleError for a folder that is no bundle, UsageError for one of the other kind.
    """
    family = family_bundles(progress) if mtp is None or slm is None else None
    opened = []
    for kind, folder in zip(_NAMES, (mtp, slm), strict=True):
        if folder is None:
            assert family is not None
            folder = family / kind
        bundle = open_bundle(folder)
        if bundle.manifest.kind != kind:
            raise UsageError(
                f"--{kind}-bundle {folder} is a bundle of kind {bundle.manifest.kind!r}; give it the other one"
            )
        opened.append(bundle)
    first = Pair("A", *opened)
    return (first,) if against is None else (first, _second(first, open_bundle(against)))


def family_bundles(progress: Callable[[str], None]) -> Path:
    """The folder with the family's bundles `mtp` and `slm`; exported where the cache does not hold them whole."""
    folder = cache_path("family") / _key()
    if folder.is_dir():
        if not any(_problems(folder / name) for name in _NAMES):
            return folder
        _LOG.warning("the family's bundles in %s are damaged and are exported again", folder)
        shutil.rmtree(folder)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir(parents=True)
        export_mtp(mtp_export_options(partial / "mtp"), lambda text: progress(f"the family's head: {text}"))
        export_slm(slm_export_options(partial / "slm"), lambda text: progress(f"the family's SLM: {text}"))
        # another process may have been quicker; what it made is the same
        if not folder.is_dir():
            os.rename(partial, folder)
    except OSError as error:
        raise UsageError(f"the family's bundles cannot be kept in {folder} ({error}): set XDG_CACHE_HOME") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _second(first: Pair, other: Bundle) -> Pair:
    pair = Pair("B", other, first.slm) if other.manifest.kind == "mtp" else Pair("B", first.mtp, other)
    if pair.mtp.manifest.keep_set.vocab_size != pair.slm.manifest.keep_set.vocab_size:
        raise UsageError(
            f"--against {other.folder} is for a vocabulary of {other.manifest.keep_set.vocab_size}, the bundle that it "
            "would draft with is for another: both must be one verifier's"
        )
    return pair


def _problems(folder: Path) -> bool:
    try:
        return bool(verify_files(open_bundle(folder)))
    except BundleError:
        return True


def _key() -> str:
    compiler = "none" if why_unavailable() else metadata.version("onnxruntime-qnn")
    digest = hashlib.sha256(f"{__version__} {compiler}\n".encode())
    files = sorted(path for path in FAMILY_DIR.rglob("*") if path.is_file())
    for path in (*files, CALIBRATION_PROMPTS, HELD_OUT_PROMPTS):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return f"{__version__}-{digest.hexdigest()[:16]}"
