"""What is meant to run on the phone, as it lies here: the bundles and the runner's folder."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from device_runner.doctor.check import Check, Finding, examine, examine_value, named, not_checked, ok, problem
from device_runner.qnn_build import read_stamp
from device_runner.runner_folder import RunnerFolder
from export.bundle import RuntimeTarget, open_bundle, require_target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from export.bundle import Bundle
    from export.engines.htp import Target

NO_RUNNER = "no runner's folder was given (--runner DIR)"
_MAKE_RUNNER = "make the folder again with `hyco-npu runner build`, all QNN pieces from one package"


def open_pieces(
    folders: Sequence[Path], runner: Path | None
) -> tuple[list[Check], tuple[Bundle, ...], RunnerFolder | None]:
    """Checks of each bundle and of the runner, and those that opened."""
    checks, bundles = [], []
    for folder in folders:
        check, bundle = examine_value(f"bundle {folder}", functools.partial(_open_bundle, folder))
        checks.append(check)
        if bundle is not None:
            bundles.append(bundle)
    check, loaded = examine_value("runner", lambda: _open_runner(runner))
    ages = [_runtime_check(bundle, loaded) for bundle in bundles]
    return [*checks, check, *ages], tuple(bundles), loaded


def _runtime_check(bundle: Bundle, runner: RunnerFolder | None) -> Check:
    """The runner's QNN is not older than the one that compiled the bundle's binaries."""
    return examine(f"bundle {bundle.folder}: age of QNN", lambda: _runtime_age(bundle, runner))


def bundle_fits(bundle: Bundle, target: Target | None) -> Check:
    """The bundle holds a binary for the phone's soc_model and architecture."""
    return examine(f"bundle {bundle.folder}: chip", lambda: _fits_chip(bundle, target))


@named("stub and skeleton")
def stub_and_skeleton(runner: RunnerFolder | None, target: Target | None) -> Finding:
    """The two halves of the way to the NPU, for the phone's architecture, of the same build as the backend.

    QNN refuses another build at run time ("Stub lib id mismatch: expected (v2.28...), detected (v2.25...)"). Where no
    phone is known, the architectures that the folder is for are looked at.
    """
    if runner is None:
        return not_checked(NO_RUNNER)
    archs = runner.description.htp_archs if target is None else (f"v{target.htp_arch}",)
    if not archs:
        return not_checked(f"the runner in {runner.folder} is for no phone's NPU")
    wanted = [f"libQnnHtp{arch.upper()}{half}.so" for arch in archs for half in ("Stub", "Skel")]
    missing = [name for name in wanted if name not in runner.names]
    if missing:
        there = ", ".join(runner.description.htp_archs) or "none"
        return problem(f"{', '.join(missing)} missing in {runner.folder}; it is for: {there}", _MAKE_RUNNER)
    libraries = [*wanted, *([] if runner.qnn_backend is None else [runner.qnn_backend.name])]
    stamps = {name: read_stamp(runner.folder / name) for name in libraries}
    listing = ", ".join(f"{name} {stamp.text or 'unknown'}" for name, stamp in stamps.items())
    if len({stamp.number for stamp in stamps.values() if stamp.number is not None}) > 1:
        return problem(f"not of one build: {listing}", _MAKE_RUNNER)
    if any(stamp.number is None for stamp in stamps.values()):
        return not_checked(f"not every library carries its build: {listing}")
    return ok(listing)


def _open_bundle(folder: Path) -> tuple[Finding, Bundle | None]:
    bundle = open_bundle(folder)
    compiled = ", ".join(
        f"{status.target} by QNN {status.qnn_version}" for status in bundle.manifest.targets if status.compiled
    )
    content = "`hyco-npu check` reads the files themselves"
    return ok(f"{bundle.manifest.kind}, compiled for {compiled or 'no chip'}; {content}"), bundle


def _open_runner(folder: Path | None) -> tuple[Finding, RunnerFolder | None]:
    if folder is None:
        return not_checked(NO_RUNNER), None
    runner = RunnerFolder.load(folder)
    runner.verify()
    facts = runner.description
    providers, qnn = ", ".join(facts.providers), facts.qnn_build or "none"
    return ok(f"{facts.abi}, ONNX Runtime {facts.ort_version or 'unknown'}, QNN {qnn}, providers: {providers}"), runner


def _fits_chip(bundle: Bundle, target: Target | None) -> Finding:
    if target is None:
        return not_checked("the phone's chip is not known")
    status = require_target(bundle, RuntimeTarget(target.name, target.soc_model, f"v{target.htp_arch}"))
    return ok(f"compiled for {status.target} (soc_model {status.soc_model}, {status.htp_arch})")


def _runtime_age(bundle: Bundle, runner: RunnerFolder | None) -> Finding:
    if runner is None:
        return not_checked(NO_RUNNER)
    build = runner.description.qnn_build
    if build is None:
        return not_checked(f"the runner in {runner.folder} carries no QNN", _MAKE_RUNNER)
    compiled = [status for status in bundle.manifest.targets if status.compiled]
    for status in compiled:
        require_target(bundle, RuntimeTarget(status.target, status.soc_model, status.htp_arch, build))
    if not compiled:
        return not_checked("the bundle holds no compiled graph")
    return ok(f"runtime {build}, binaries {', '.join(sorted({str(status.qnn_version) for status in compiled}))}")
