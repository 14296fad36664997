"""`hyco-npu calibrate` through the command line: files, JSON, shards merged, wrong use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.keepset import KeepSet
from calibration.ranges import Ranges
from hyco_npu.cli import app
from hyco_npu.family import CALIBRATION_PROMPTS

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the calibration prompts."""
    file = tmp_path_factory.mktemp("prompts") / "two prompts.jsonl"
    file.write_text("".join(CALIBRATION_PROMPTS.read_text().splitlines(keepends=True)[:2]))
    return file


@pytest.fixture(scope="module")
def calibrated(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("calibrated") / "ranges.json"
    code, result = run("calibrate", "mtp", "--prompts", str(prompts), "--window", "128", "--out", str(out))
    assert code == 0, result
    return out, result


def test_a_head_of_the_family(calibrated: tuple[Path, dict[str, Any]]) -> None:
    out, result = calibrated
    assert result["out"] == str(out)
    assert (result["method"], result["prompts"], result["prompts_in_all"]) == ("minmax", 2, 2)
    assert result["tensors"] == Ranges.load(out).count
    assert result["given"] == []
    assert result["seconds"] > 0
    for one in result["suspicious"]:
        assert {"name", "kind", "low", "high", "p9999", "ratio"} <= one.keys()
    written = {result[key] for key in ("out", "observations", "chart", "keep_set")}
    assert written == {str(path) for path in out.parent.iterdir()}


def test_shards_merged_are_the_whole(calibrated: tuple[Path, dict[str, Any]], prompts: Path, tmp_path: Path) -> None:
    out, whole = calibrated
    files = []
    for number in (1, 2):
        shard = tmp_path / f"shard{number}.json"
        code, result = run(
            "calibrate", "mtp", "--prompts", str(prompts), "--window", "128", "--out", str(shard),
            "--keep-set", whole["keep_set"], "--shard", f"{number}/2",
        )  # fmt: skip
        assert code == 0, result
        assert (result["prompts"], result["prompts_in_all"]) == (1, 2)
        files.append(result["observations"])
    merged = tmp_path / "merged.json"
    code, result = run("calibrate", "merge", *files, "--out", str(merged))
    assert code == 0, result
    assert merged.read_bytes() == out.read_bytes()
    code, result = run("calibrate", "merge", files[0], files[0], "--out", str(tmp_path / "twice.json"))
    assert code == 1
    assert "are in two shards" in result["error"]


def test_another_method_from_the_same_observations(calibrated: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, whole = calibrated
    narrow = tmp_path / "narrow.json"
    arguments = ("calibrate", "merge", whole["observations"], "--out", str(narrow))
    code, result = run(*arguments, "--method", "percentile", "--percentile", "99")
    assert code == 0, result
    assert result["method"] == "percentile 99"
    all_values, few = Ranges.load(out), Ranges.load(narrow)
    widths = [
        (few.of(n)[1] - few.of(n)[0]) / (high - low) for n, (low, high) in all_values.bounds.items() if high > low
    ]
    assert max(widths) <= 1
    assert np.median(widths) < 0.95
    text = CliRunner().invoke(app, [*arguments, "--force"])
    assert text.exit_code == 0
    assert "ranges of" in text.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--shard", "3/2"], "--shard 3/2"),
        (["--shard", "1/2"], "--keep-set FILE"),
        (["--jobs", "0"], "--jobs 0"),
        (["--percentile", "10"], "--percentile 10"),
        (["--keep-set", "5000"], "--keep-set 5000"),
        (["--out", "ranges.txt"], "--out ranges.txt"),
        (["--window", "0"], "--window 0"),
    ],
)
@pytest.mark.parametrize("drafter", ["mtp", "slm"])
def test_wrong_use_is_told_and_writes_nothing(drafter: str, options: list[str], reason: str, tmp_path: Path) -> None:
    code, result = run("calibrate", drafter, "--out", str(tmp_path / "ranges.json"), *options)
    assert code == 2, result
    assert reason in result["error"]
    assert list(tmp_path.iterdir()) == []


def test_responses_of_prompts_generate_are_not_generated_again(
    calibrated: tuple[Path, dict[str, Any]], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers as long as a calibration's own give the same ranges."""
    out, whole = calibrated
    responses, again = tmp_path / "responses.jsonl", tmp_path / "again.json"
    code, result = run(
        "prompts", "generate", "--prompts", str(prompts), "--max-new-tokens", "48", "--out", str(responses)
    )
    assert code == 0, result
    monkeypatch.delattr("export.mtp.states.greedy_sequences")
    arguments = ("calibrate", "mtp", "--prompts", str(responses), "--window", "128", "--out", str(again))
    code, result = run(*arguments)
    assert code == 0, result
    found, wanted = dict(Ranges.load(again).bounds), dict(Ranges.load(out).bounds)
    assert found.keys() == wanted.keys()
    for name, bounds in wanted.items():
        # the answers come from batches: the same tokens, other last bits of what was computed on the way
        assert found[name] == pytest.approx(bounds, rel=1e-5, abs=1e-7)
    assert result["hashes"]["verifier"] == whole["hashes"]["verifier"]
    assert result["hashes"]["prompts"] != whole["hashes"]["prompts"]
    responses.with_suffix(".meta.json").unlink()
    responses.write_text(responses.read_text().replace(result["hashes"]["verifier"], "c" * 64))
    code, result = run(*arguments, "--force")
    assert code == 1
    assert f"is of the verifier {'c' * 64}, not of the one that is given" in result["error"]


def test_keys_and_values_have_16_or_8_bits(tmp_path: Path) -> None:
    code, result = run("calibrate", "mtp", "--kv-bits", "5", "--out", str(tmp_path / "ranges.json"))
    assert code == 2
    assert "--kv-bits 5 is not supported" in result["error"]


def test_files_that_are_there_are_kept(calibrated: tuple[Path, dict[str, Any]]) -> None:
    out, _ = calibrated
    before = out.read_bytes()
    code, result = run("calibrate", "mtp", "--out", str(out))
    assert code == 2
    assert "--force" in result["error"]
    assert out.read_bytes() == before


def test_a_keep_set_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    KeepSet(np.arange(64), 300).save(tmp_path / "keep.json")
    code, result = run(
        "calibrate", "slm", "--keep-set", str(tmp_path / "keep.json"), "--out", str(tmp_path / "ranges.json")
    )
    assert code == 1
    assert "keep.json" in result["error"]
