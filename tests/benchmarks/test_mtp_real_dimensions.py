"""The MTP head at its real dimensions: random weights of the 26B-A4B assistant, 86,016 kept tokens, window 1,024.

Sizes follow from the dimensions and are exact on every machine; times and memory are those of this machine and are
printed beside the limits of the issue (two cores, 24 GiB). Needs about 5 GB of disk in the temporary folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hyco_npu.family.random import write_random_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

KEPT = 86016
GRAPH_BYTES = 123e6
PEAK_BYTES = 8e9
COMPILE_S = 60.0


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The JSON of `hyco-npu export mtp` on the random head, run in a process of its own."""
    folder = tmp_path_factory.mktemp("real")
    write_random_checkpoint("26b-a4b-assistant", folder / "head", None, 0)
    write_random_checkpoint("26b-a4b", folder / "verifier", "embed_tokens", 0)
    return run_export(folder, "--keep-set", str(KEPT))


def run_export(folder: Path, *options: str) -> dict[str, object]:
    """Export folder/head with folder/verifier; prints and returns the result."""
    arguments = ["--checkpoint", str(folder / "head"), "--verifier", str(folder / "verifier")]
    command = [sys.executable, "-m", "hyco_npu", "export", "mtp", *arguments, *options]
    done = subprocess.run(
        [*command, "--out", str(folder / "bundle"), "--json"], capture_output=True, text=True, check=True
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result, indent=2))
    return result


@pytest.mark.htp
def test_the_w4_graph_has_the_papers_size(exported: dict[str, object]) -> None:
    assert isinstance(exported["graph_bytes"], int)
    assert abs(exported["graph_bytes"] / GRAPH_BYTES - 1) < 0.02
    assert exported["nodes_off_npu"] == 0


def test_the_table_holds_one_byte_a_value(exported: dict[str, object]) -> None:
    # 86,000 rows x 2,816 bytes are the 242.2 MB of the paper
    assert exported["lut_bytes"] == KEPT * 2816
    assert round(86000 * 2816 / 1e6, 1) == 242.2


@pytest.mark.htp
def test_compiling_stays_within_time_and_memory(exported: dict[str, object]) -> None:
    assert isinstance(exported["compile_s"], float)
    assert isinstance(exported["peak_rss_bytes"], int)
    assert exported["compile_s"] < COMPILE_S
    assert exported["peak_rss_bytes"] < PEAK_BYTES
