"""One text on three engines: quantised graphs draft on ONNX Runtime and on the HTP simulator, and it stays the text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from hyco_npu.cli import app
from hyco_npu.family import CALIBRATION_PROMPTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.htp
PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have?"
WINDOW = 192


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of the family's drafters and a configuration with their window."""
    folder = tmp_path_factory.mktemp("engines")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(CALIBRATION_PROMPTS.read_text().splitlines(keepends=True)[:4]))
    for kind in ("mtp", "slm"):
        arguments = ["--calibration", str(prompts), "--window", str(WINDOW), "--out", str(folder / kind)]
        code, result = run("export", kind, *arguments)
        assert code == 0, result
    (folder / "mine.toml").write_text(
        f'name = "mine"\ndrafter = "hybrid"\n[mtp]\nwindow = {WINDOW}\n[slm]\nwindow = {WINDOW}\n[guesses]\n'
    )
    return folder


def decode(folder: Path, engine: str, tokens: int, *more: str) -> tuple[int, dict[str, Any]]:
    bundles = ["--mtp-bundle", str(folder / "mtp"), "--slm-bundle", str(folder / "slm")]
    config = ["--config", str(folder / "mine.toml"), "--prompt", PROMPT, "--max-new-tokens", str(tokens)]
    return run("generate", "--engine", engine, *bundles, *config, *more)


def test_quantised_graphs_draft_the_same_text(folder: Path) -> None:
    _, floats = decode(folder, "torch", 40)
    code, quantised = decode(folder, "qdq", 40)
    assert code == 0, quantised
    assert quantised["token_ids"] == floats["token_ids"]
    assert quantised["engine"] == "qdq"
    # 8-bit caches and 16-bit activations cost little: most of a tree is the same
    assert quantised["rounds"] <= floats["rounds"] + 2


def test_the_simulator_drafts_the_same_text(folder: Path) -> None:
    _, floats = decode(folder, "torch", 8)
    code, simulated = decode(folder, "simulator", 8)
    assert code == 0, simulated
    assert simulated["token_ids"] == floats["token_ids"]
    assert simulated["rounds"] <= floats["rounds"] + 1


def test_a_configuration_of_another_window_or_other_bits_is_refused(folder: Path) -> None:
    code, result = decode(folder, "qdq", 8, "--config", "hyco")
    assert code == 2
    assert "window is 192" in result["error"]
    other = folder / "other.toml"
    other.write_text((folder / "mine.toml").read_text().replace("[mtp]\n", "[mtp]\nbits = 8\n"))
    code, result = decode(folder, "qdq", 8, "--config", str(other))
    assert code == 2
    assert "bits is 4" in result["error"]
