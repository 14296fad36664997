"""What the phone is: does it answer, can the runner's programs start on it, is its chip a known one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from device_runner.devices import identify
from device_runner.doctor.check import Finding, named, not_checked, ok, problem
from device_runner.doctor.device import CALL
from export.engines.htp import TARGETS

if TYPE_CHECKING:
    from device_runner.devices import Identity
    from device_runner.doctor.device import AskedOnce
    from device_runner.runner_folder import RunnerFolder
    from export.engines.htp import Target

PHONE_ABI = "arm64-v8a"
NEEDED_ANDROID = 10
"""The first that tells its thermal status."""


def look_at_identity(phone: AskedOnce) -> tuple[Finding, Identity | None]:
    """Model and build; the first question that the phone is asked."""
    identity = identify(phone, CALL)
    if identity.model is None and identity.soc_model is None:
        return not_checked("`getprop` tells neither model nor chip"), identity
    return ok(f"{identity.model or 'no model'}, {identity.fingerprint or 'no fingerprint'}"), identity


@named("abi")
def abi(identity: Identity | None, runner: RunnerFolder | None) -> Finding:
    """The phone's machine code, and the runner's."""
    if identity is None or identity.abi is None:
        return not_checked("the phone does not tell ro.product.cpu.abi")
    if identity.abi != PHONE_ABI:
        return problem(f"{identity.abi}, not {PHONE_ABI}", "the NPU's libraries exist for 64-bit ARM phones only")
    if runner is not None and runner.description.abi != identity.abi:
        return problem(
            f"the phone is {identity.abi}, the runner in {runner.folder} is for {runner.description.abi}",
            "build the runner for Android: docs/native-runner.md",
        )
    return ok(identity.abi)


@named("android version")
def android_version(identity: Identity | None) -> Finding:
    """New enough to tell its heat."""
    said = None if identity is None else identity.android_version
    found = re.match(r"\d+", said or "")
    if found is None:
        return not_checked(f"ro.build.version.release is {said!r}")
    if int(found.group()) < NEEDED_ANDROID:
        return problem(f"Android {said}, older than {NEEDED_ANDROID}", "update the phone: it does not tell its heat")
    return ok(f"Android {said}")


def look_at_chip(identity: Identity | None) -> tuple[Finding, Target | None]:
    """The chip by ro.soc.model (Android 12 and later)."""
    if identity is None or identity.soc_model is None:
        soc_id = "" if identity is None or identity.soc_id is None else f"; the kernel's soc_id is {identity.soc_id}"
        return not_checked(f"the phone does not tell ro.soc.model{soc_id}"), None
    target = TARGETS.get(identity.soc_model.lower())
    if target is None:
        known = ", ".join(f"{one.name} ({one.phones})" for one in TARGETS.values())
        return (
            problem(f"{identity.soc_model} is none of the chips that bundles are made for", f"known are: {known}"),
            None,
        )
    return ok(f"{identity.soc_model}: {target.phones}, soc_model {target.soc_model}, v{target.htp_arch}"), target
