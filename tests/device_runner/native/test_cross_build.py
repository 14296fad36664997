"""The runner for aarch64 Linux, run by qemu: it draws the trees and gives the codes of the Python drafter."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from device_runner.build import build_cross
from device_runner.elf import AARCH64, read_elf

from .recorded import Sizes, TextRecorder, open_session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.native, pytest.mark.cross]
CONFIG: dict[str, Any] = {
    "tree": {"nodes": 14},
    "mtp": {"steps": 4, "width": 2, "sibling_depth": 2},
    "slm": {"passes": 2, "children": 4, "beam": 6},
    "guesses": {},
}
SCORE_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_cross(tmp_path_factory.mktemp("cross"))


def run(runner: Path, *arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", str(runner), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_it_needs_the_c_library_alone(cross: Path) -> None:
    """A phone-like Linux need not have this machine's C++ library."""
    facts = read_elf(cross)
    assert (facts.bits, facts.machine) == (64, AARCH64)
    assert {name.split(".")[0] for name in facts.needed} <= {"libc", "libm", "ld-linux-aarch64"}


def test_the_same_trees_and_the_same_codes(cross: Path, tmp_path: Path) -> None:
    """The recording holds the codes that the graphs were given: others are an error of the runner."""
    session = open_session(tmp_path, Sizes(), CONFIG)
    text = TextRecorder(session, 7)
    text.begin(9)
    for turn in range(6):
        text.commit(text.draft(9), deepest=turn % 2 == 0)
    recording = text.save(tmp_path / "recording.safetensors")
    code, lines = run(cross, "replay", "--mtp", session.mtp, "--slm", session.slm, "--recording", recording)
    assert (code, lines[-1]) == (0, {"end": True, "exit": 0}), lines[-2:]
    assert len(lines) == len(text.trees) + 1
    for line, tree in zip(lines, text.trees, strict=False):
        found = line["tree"]
        assert (found["token_ids"], found["parents"]) == (list(tree.token_ids), list(tree.parents))
        assert found["sources"] == list(tree.sources)
        np.testing.assert_allclose(found["scores"], tree.scores, atol=SCORE_TOLERANCE, rtol=0)


def test_a_bundle_is_described(cross: Path, tmp_path: Path) -> None:
    session = open_session(tmp_path, Sizes(), CONFIG)
    code, lines = run(cross, "info", "--bundle", session.slm)
    assert (code, lines[0]["kind"]) == (0, "slm"), lines
    (session.slm / "table.safetensors").write_bytes(b"damaged")
    code, lines = run(cross, "info", "--bundle", session.slm)
    assert code == 1
    assert [line["problem"].split(":")[0] for line in lines if "problem" in line] == ["table.safetensors"]
