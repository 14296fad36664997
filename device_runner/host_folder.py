"""The runner's folder for this machine (x86-64 Linux): built here, its libraries copied from the installed wheels.

What the simulator needs was found by running it in a folder of its own: the provider, libQnnHtp.so (compiler and
simulator in one) and libQnnSystem.so, with the C++ libraries that these name. libHtpPrepare.so is never opened.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import shutil
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from device_runner.build import NATIVE_SOURCES, RUNNER, build_host
from device_runner.cache import cache_path, only_one
from device_runner.elf import read_elf
from device_runner.native_errors import NativeBuildError, PieceError, RunnerFolderError
from device_runner.qnn_build import one_build, ort_version, read_stamp
from device_runner.runner_folder import (
    ORT,
    QNN_BACKEND,
    QNN_PROVIDER,
    SCHEMA_VERSION,
    RunnerFacts,
    RunnerFolder,
    write_runner_folder,
)
from device_runner.staged_folder import staged_folder

_LOG = logging.getLogger(__name__)

QNN_SYSTEM = "libQnnSystem.so"
_WHEELS = ("onnxruntime", "onnxruntime-qnn")
_BUILT = "built from device_runner/native on this machine"
_KEPT_BUILDS = 3


def build_host_runner(out: Path, *, force: bool = False) -> RunnerFolder:
    """Build the runner for this machine and put it at `out` with ONNX Runtime and QNN's x86 libraries.

    `force` replaces a runner's folder. Raises UsageError where `out` cannot be that, NativeBuildError where this is
    not x86-64 Linux or the build fails, PieceError where a wheel lacks a library.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        found = f"{platform.machine()} {platform.system()}"
        raise NativeBuildError(f"the host's runner is for x86-64 Linux, this is {found}: build one for a phone instead")
    pieces = _wheel_pieces()
    with staged_folder(out, force=force) as folder:
        sources = {RUNNER: _BUILT}
        with tempfile.TemporaryDirectory(prefix="hyco-runner-") as scratch:
            shutil.copyfile(build_host(Path(scratch)), folder / RUNNER)
        for name, (path, source) in pieces.items():
            shutil.copyfile(path, folder / name)
            sources[name] = source
        facts = RunnerFacts(
            abi="x86_64-linux",
            ort_version=ort_version(folder / ORT),
            qnn_build=one_build({name: read_stamp(folder / name) for name in (QNN_BACKEND, QNN_SYSTEM)}),
            providers=("cpu", "simulator"),
            htp_archs=(),
        )
        write_runner_folder(folder, sources, facts)
    return RunnerFolder.load(out)


def cached_host_runner() -> RunnerFolder:
    """The host's runner of these sources and wheels, built where the cache does not hold it whole; raises as
    `build_host_runner`. The cache is $XDG_CACHE_HOME/hyco-npu/runner (~/.cache without it)."""
    folder = cache_path("runner") / _key()
    with only_one(folder.parent):
        try:
            return RunnerFolder.load(folder)
        except RunnerFolderError as reason:
            _LOG.info("building the native runner for this machine (%s)", reason if folder.exists() else "once")
        shutil.rmtree(folder, ignore_errors=True)
        made = build_host_runner(folder)
        _forget_old(folder.parent)
        return made


def _wheel_pieces() -> dict[str, tuple[Path, str]]:
    """Name in the folder -> (file, where it is from), with the libraries of the wheels that others need."""
    runtime, qnn = _package("onnxruntime"), _package("onnxruntime_qnn")
    libraries = sorted((runtime / "capi").glob(f"{ORT}.*"))
    if len(libraries) != 1:
        raise PieceError(f"{runtime / 'capi'} holds {len(libraries)} files {ORT}.*, one was expected: install it again")
    found = {ORT: (libraries[0], f"wheel onnxruntime {metadata.version('onnxruntime')}")}
    source = f"wheel onnxruntime-qnn {metadata.version('onnxruntime-qnn')}"
    places = (qnn, qnn.with_name(f"{qnn.name}.libs"))
    wanted = [QNN_PROVIDER, QNN_BACKEND, QNN_SYSTEM]
    for name in wanted:
        path = next((place / name for place in places if (place / name).is_file()), None)
        if path is None:
            raise PieceError(f"the {source} has no {name}: install it again")
        found[name] = (path, source)
        bundled = (other for other in read_elf(path).needed if any((place / other).is_file() for place in places))
        wanted += [other for other in bundled if other not in wanted]
    return found


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise PieceError(f"the package {name.replace('_', '-')} is not installed: pip install it and try again")
    return Path(next(iter(spec.submodule_search_locations)))


def _key() -> str:
    """A hash over what the folder is made of: schema, wheels, build options (this package's own build.py), sources."""
    digest = hashlib.sha256(str(SCHEMA_VERSION).encode())
    for wheel in _WHEELS:
        _package(wheel.replace("-", "_"))
        digest.update(f"{wheel} {metadata.version(wheel)}\n".encode())
    here = Path(__file__).parent
    sources = (path for path in NATIVE_SOURCES.rglob("*") if path.is_file() and path.parent.name != "probe")
    for path in (here / "build.py", here / "host_folder.py", *sorted(sources)):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _forget_old(cache: Path) -> None:
    """Builds of older sources: each has the size of the wheels' libraries."""
    builds = sorted((path for path in cache.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in builds[:-_KEPT_BUILDS]:
        shutil.rmtree(path, ignore_errors=True)
