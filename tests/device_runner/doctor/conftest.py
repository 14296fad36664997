"""A phone as the checks are given it, one without root's right to read everything, and runner folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from device_runner.doctor.device import AskedOnce
from device_runner.runner_folder import RunnerFacts, RunnerFolder, write_runner_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbTransport
    from tests.device_runner.phone import Phone

BUILD, OTHER_BUILD = "v2.51.0.260929181845", "v2.25.17.241017130936"
FACTS = {"abi": "arm64-v8a", "ort_version": "1.32.0", "qnn_build": BUILD, "providers": ("htp",), "htp_archs": ("v81",)}


@pytest.fixture
def asked(device: AdbTransport) -> AskedOnce:
    """The phone behind the real adb."""
    return AskedOnce(device.client, device.serial)


@pytest.fixture
def plain_user(phone: Phone) -> Phone:
    """The phone; its shell lacks root's right to read files whatever their mode, as the shell user of a phone does."""
    if os.geteuid() == 0:
        drop = "setpriv --bounding-set=-all --inh-caps=-all"
        phone.set_command("sh", f'#!/bin/bash\nexec {drop} /bin/sh "$@"\n')
    return phone


@pytest.fixture
def write_runner(tmp_path: Path) -> Callable[..., RunnerFolder]:
    """Make a runner's folder; `builds` are libraries with the build that they carry, `facts` what runner.json says."""

    def write(builds: dict[str, str] | None = None, **facts: object) -> RunnerFolder:
        folder = tmp_path / "runner"
        folder.mkdir()
        default = {f"libQnnHtp{part}.so": BUILD for part in ("", "V81Stub", "V81Skel")}
        contents = {name: f"\x7fELF\0{build}\0" for name, build in (default if builds is None else builds).items()}
        for name in ("hyco_runner", "libonnxruntime.so", "libonnxruntime_providers_qnn.so"):
            contents[name] = "\x7fELF\0"
        for name, content in contents.items():
            (folder / name).write_bytes(content.encode())
        sources = dict.fromkeys(contents, "the tests")
        return write_runner_folder(folder, sources, RunnerFacts.model_validate({**FACTS, **facts}))

    return write
