"""The CPU's share of a round in the native runner, at real dimensions: E2B and the 26B's head, 33 rows, 86,016 tokens.

The graphs' outputs are recorded noise, so a round is what the runner does beside the NPU: codes of all inputs, top-k of
33 rows of logits, merge and cut to 32 nodes, windows. Goal: 2 ms. The recording is played several times; as every play
does the same work, a round's time is its shortest: what is above that are other processes of the host. The median over
all plays is printed beside it. Run by name:

    make test PYTEST_ARGS="tests/benchmarks/test_native_cpu_share.py -s"
"""

from __future__ import annotations

import json
import statistics
import subprocess
from typing import TYPE_CHECKING

import pytest

from device_runner.build import build_host
from tests.device_runner.native.recorded import Sizes, TextRecorder, open_session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.native
GOAL_MS = 2.0
ROUNDS, WARM_UP, PLAYS = 12, 3, 9
CPU_PARTS = ("tables", "feeds", "topk", "tree", "state")
REAL = Sizes(
    vocabulary=88000,
    kept=86016,
    chunks=(16384,) * 5 + (4096,),
    window=1024,
    sliding_window=512,
    rows=33,
    prefill_rows=128,
    backbone=2816,
    head_heads=(8, 2),
    head_dims=(256, 512),
    hidden=1536,
    layer_kinds="ssssf" * 7,
    owners=(*range(15), *([13, 13, 13, 13, 14] * 4)),
    slm_dims=(256, 512),
    per_layer_width=256,
    table_rows=88000,
    distinct_rows=400,
)


def test_cpu_share_of_a_round(tmp_path: Path) -> None:
    runner = build_host(tmp_path / "build")
    config = {"tree": {"nodes": 32}, "mtp": {}, "slm": {"children": 4}, "guesses": {}}
    session = open_session(tmp_path, REAL, config, keep_inputs=False)
    text = TextRecorder(session, seed=0)
    text.begin(1200)
    for _ in range(ROUNDS):
        text.commit(text.draft(9), deepest=True)
    recording = text.save(tmp_path / "recording.safetensors")
    command = [runner, "replay", "--mtp", session.mtp, "--slm", session.slm, "--recording", recording]
    plays = [played_rounds([str(part) for part in command]) for _ in range(PLAYS)]
    for part in CPU_PARTS:
        report(part, [[one[part] for one in rounds] for rounds in plays])
    round_ms = report("round", [[sum(one[part] for part in CPU_PARTS) for one in rounds] for rounds in plays])
    assert round_ms <= GOAL_MS


def played_rounds(command: list[str]) -> list[dict[str, float]]:
    """Milliseconds of the parts of every round after the warm-up, in one play of the recording."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line)["milliseconds"] for line in done.stdout.splitlines()[WARM_UP:-1]]


def report(name: str, plays: list[list[float]]) -> float:
    """Print and return the median over the rounds, each at its fastest play."""
    fastest = float(statistics.median(min(of_round) for of_round in zip(*plays, strict=True)))
    every = [value for rounds in plays for value in rounds]
    spread = f"all plays: median {statistics.median(every):.3f}, {min(every):.3f} to {max(every):.3f}"
    print(f"\n{name:6s} {fastest:.3f} ms ({spread})", end="")
    return fastest
