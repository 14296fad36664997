"""Cases 44 and 46 through the command line: damaged weights give a message with the file, exit code 1, nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from hyco_npu.cli import app
from hyco_npu.family import MTP_DIR, SLM_DIR, VERIFIER_DIR

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "trunc_tail": "model.safetensors",
    "trunc_header": "model.safetensors",
    "empty": "model.safetensors",
    "html": "model.safetensors",
    "lfs_pointer": "model.safetensors",
    "trailing": "model.safetensors",
    "huge_header": "model.safetensors",
    "shape_lies": "model.safetensors",
    "missing_shard": "model-00002-of-00002.safetensors",
    "index_lies": "model-00002-of-00002.safetensors",
    "index_omits_mtp": "model-mtp.safetensors",
}


@pytest.fixture(scope="module")
def bad_dir(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    tool = shared_dir / "cases" / "tools" / "mkbad.py"
    subprocess.run([sys.executable, str(tool), str(folder)], check=True, capture_output=True, timeout=60)
    return folder


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command; an exception that was not caught is raised here."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["export", "calibrate"])
@pytest.mark.parametrize("drafter", ["mtp", "slm"])
def test_damaged_weights_are_named_and_leave_nothing(
    bad_dir: Path, tmp_path: Path, command: str, drafter: str, name: str
) -> None:
    checkpoint = shutil.copytree(bad_dir / name, tmp_path / "checkpoint")
    shutil.copyfile((MTP_DIR if drafter == "mtp" else SLM_DIR) / "config.json", checkpoint / "config.json")
    out = tmp_path / ("out" if command == "export" else "out.json")
    code, result = run(
        command, drafter, "--checkpoint", str(checkpoint), "--verifier", str(VERIFIER_DIR), "--out", str(out)
    )
    assert code == 1, result
    assert str(checkpoint / FILES[name]) in result["error"]
    assert "Traceback" not in result["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_every_folder_of_the_tool_is_covered(bad_dir: Path) -> None:
    assert {path.name for path in bad_dir.iterdir() if path.is_dir() and "_OK" not in path.name} == set(FILES)
