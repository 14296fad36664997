"""The native runner and its probe, built once a session: as shipped, and with sanitizers."""

from __future__ import annotations

import functools
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from device_runner.build import PROBE, build_host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BUILDS = {"release": False, "sanitized": True}


@dataclass(frozen=True)
class Native:
    """Both executables of one build, and a folder for what they read."""

    runner: Path
    folder: Path

    def run(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and lines of the runner; a sanitizer's finding is a failure."""
        return _run(self.runner, *arguments)

    def probe(self, what: str, arrays: dict[str, np.ndarray] | None = None, **fields: Any) -> Any:
        """Result of one part of the runner; a list of one error text where it refuses."""
        path = self.folder / "probe.safetensors"
        # safetensors wants at least one tensor
        tensors = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        save_file(tensors or {"none": np.zeros(1, np.uint8)}, path, {"probe": json.dumps({"run": what, **fields})})
        code, lines = _run(self.runner.with_name(PROBE), str(path))
        if code:
            raise RefusedError(lines[0]["error"])
        return lines[0]["result"]


class RefusedError(Exception):
    """The probe's own words."""


def _run(*command: str | Path) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=False)
    assert "runtime error" not in done.stderr, done.stderr
    assert "Sanitizer" not in done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Native]:
    """Builds by name, each made when it is first asked for: a fixture with parameters forgets one for the other."""

    @functools.cache
    def build(name: str) -> Native:
        folder = tmp_path_factory.mktemp(name)
        return Native(build_host(folder / "build", probe=True, sanitize=_BUILDS[name]), folder)

    return build


@pytest.fixture(params=_BUILDS)
def native(request: pytest.FixtureRequest, builds: Callable[[str], Native]) -> Native:
    """One of the two builds."""
    return builds(request.param)
