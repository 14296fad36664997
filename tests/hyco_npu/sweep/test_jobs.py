"""Several processes give what one gives, say which setting failed, and keep those that did not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from hyco_npu.cli import app

if TYPE_CHECKING:
    from pathlib import Path


def sweep(folder: Path, configs: list[str], jobs: int) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Exit code, JSON, and the finished settings without seconds by name."""
    file = folder / "plan.toml"
    file.write_text(f'configs = {configs}\nlimit = 1\nmax_new_tokens = 8\n[grid]\n"mtp.steps" = [40]\n')
    out = folder / f"jobs{jobs}"
    result = CliRunner().invoke(app, ["sweep", str(file), "--out", str(out), "--jobs", str(jobs), "--json"])
    finished = {}
    for path in out.with_name(f"{out.name}.work").iterdir():
        fields = json.loads(path.read_text())
        for text in fields["texts"]:
            assert text.pop("seconds") > 0
        finished[fields["setting"]] = (path.name, fields)
    return result.exit_code, json.loads(result.stdout.splitlines()[-1]), finished


def test_two_processes_give_what_one_gives_and_name_the_setting_that_fails(tmp_path: Path) -> None:
    code, result, alone = sweep(tmp_path, ["ngram", "cloud-mtp"], jobs=1)
    assert code == 0, result
    # the chain of 40 and its root are more rows than an SLM's pass has; the setting begins when another has ended
    code, result, beside = sweep(tmp_path, ["ngram", "cloud-mtp", "hyco"], jobs=2)
    assert code == 1
    assert result["error"].startswith("setting hyco mtp.steps=40: ")
    assert not (tmp_path / "jobs2").exists()
    assert alone == beside
    assert alone.keys() == {"ngram", "cloud-mtp mtp.steps=40"}
