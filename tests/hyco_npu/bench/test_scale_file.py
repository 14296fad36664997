"""The fitted factor: saved by a valid run on a phone's NPU alone, read by `hyco-npu estimate --scale-file`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from hyco_npu.bench.result import evaluate
from hyco_npu.bench.scale_file import fit_scale, read_scale
from hyco_npu.cli import app
from quant.errors import UsageError
from tests.export.estimate.builders import recorded_compile, write_bundle

from .builders import block, estimate, facts, measurement, rounds, runner

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

NO_SLM = {"mtp_step_1": 0.96}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "scale.json"
    fit_scale(evaluate(measurement(block()), estimate=estimate()), path)
    return path


def test_a_saved_factor(saved: Path) -> None:
    read = json.loads(saved.read_text())
    age = datetime.now(UTC) - datetime.fromisoformat(read.pop("when"))
    assert timedelta(0) <= age < timedelta(minutes=5)
    assert read.pop("formula").startswith("sum(passes x median")
    assert read == {
        "schema_version": 1, "scale": pytest.approx(1.25), "provider": "htp", "device": "R5CX 1:2",
        "soc_model": "SM8850", "qnn_version": "v2.51.0.260929181845", "qnn_build": "v2.51.0.260929181845",
        "perf_mode": "burst", "bundles": {"mtp": "a" * 64, "slm": "a" * 63 + "0"},
    }  # fmt: skip
    assert read_scale(saved).scale == pytest.approx(1.25)
    assert sorted(saved.parent.iterdir()) == [saved]


@pytest.mark.parametrize(
    ("made", "beside", "message"),
    [
        (measurement(block(info=runner("cpu"))), estimate(), "times of x86 CPU .cpu., not a phone"),
        (measurement(block(info=runner("simulator"))), estimate(), "times of x86 HTP simulator"),
        (measurement(block(info=runner(abi="x86_64-linux"))), estimate(), "x86 CPU .htp."),
        (measurement(block(before=facts(3), after=facts(3))), estimate(), "not valid .A, burst: .* status is 3"),
        (measurement(block()), None, "no estimate beside"),
        (measurement(block()), estimate(kinds=("mtp",)), "not of a whole round: no slm bundle"),
        (measurement(block()), estimate(missing_costs=2), "no cost for some operations"),
        (measurement(block(rounds=rounds([50, *[20.0] * 12], shares=NO_SLM))), estimate(), "no pass of slm_draft"),
    ],
)
def test_no_factor_is_saved(made: Any, beside: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"no scale is saved: .*{message}"):
        fit_scale(evaluate(made, estimate=beside), tmp_path / "scale.json")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    result = evaluate(measurement(block()), estimate=estimate())
    with pytest.raises(UsageError, match="choose another place"):
        fit_scale(result, tmp_path / "none" / "scale.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": 0}, "scale: "),
        ({"scale": float("inf")}, "scale: "),
        ({"scale": "1.2"}, "scale: "),
        ({"provider": "cpu"}, "provider: "),
        ({"schema_version": 2}, "schema_version 2"),
        ({"bundles": {"mtp": "x"}}, "bundles"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_files_that_are_none(saved: Path, changes: dict[str, object], message: str) -> None:
    saved.write_text(json.dumps({**json.loads(saved.read_text()), **changes}))
    with pytest.raises(UsageError, match=message):
        read_scale(saved)


def run_estimate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["estimate", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def mtp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("export.estimate.estimate.compile_for_proxy", recorded_compile)
    monkeypatch.setattr("export.estimate.estimate.require_estimator", lambda: None)
    return write_bundle(tmp_path / "mtp.bundle", "mtp", {"mtp_step": 1}).folder


def test_estimate_takes_the_factor(mtp: Path, saved: Path) -> None:
    """2.875 ms of the recorded profile times 1.25."""
    done = run_estimate(mtp, "--scale-file", saved, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["scale"] == pytest.approx(1.25)
    assert told["graphs"][0]["us"] == pytest.approx(1.25 * 2875)
    assert told["scale_from"] == json.loads(saved.read_text())
    assert told["label"] == "estimate (proxy chip, times scaled by 1.25)"
    text = run_estimate(mtp, "--scale-file", saved).stdout
    assert "scale 1.25 fitted on R5CX 1:2" in text
    assert "may differ" not in text
    without = json.loads(run_estimate(mtp, "--json").stdout)
    assert (without["scale"], without["scale_from"], without["scale_remark"]) == (1.0, None, None)


def test_a_factor_of_another_compiler_says_so(mtp: Path, saved: Path) -> None:
    old = replace(estimate(), qnn_version="v2.52.0.1")
    fit_scale(evaluate(measurement(block()), estimate=old), saved)
    told = json.loads(run_estimate(mtp, "--scale-file", saved, "--json").stdout)
    assert "to estimates of QNN v2.52.0.1: those of v2.51.0" in told["scale_remark"]


def test_wrong_use(mtp: Path, saved: Path, tmp_path: Path) -> None:
    both = run_estimate(mtp, "--scale", "2", "--scale-file", saved)
    assert (both.exit_code, "use one" in both.stderr) == (2, True)
    gone = run_estimate(mtp, "--scale-file", tmp_path / "gone.json")
    assert (gone.exit_code, "cannot be read" in gone.stderr) == (2, True)
