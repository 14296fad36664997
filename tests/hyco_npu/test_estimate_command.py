"""`hyco-npu estimate` through the command line, with a recorded profile in the compiler's place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hyco_npu.cli import app
from tests.export.estimate.builders import QNN_VERSION, recorded_compile, write_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

KEYS = {
    "name", "us_low", "us_high", "cycles", "missing_costs", "fill_bytes", "spill_bytes", "weight_bytes",
    "boundary_bytes", "floor_us", "ratio",
}  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["estimate", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.estimate.estimate.compile_for_proxy", recorded_compile)
    monkeypatch.setattr("export.estimate.estimate.require_estimator", lambda: None)


@pytest.fixture
def mtp(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "mtp.bundle", "mtp", {"mtp_step": 1}).folder


@pytest.fixture
def slm(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "slm.bundle", "slm", {"slm_draft": 32, "slm_prefill": 128}).folder


def test_json(mtp: Path, slm: Path) -> None:
    done = run(mtp, slm, "--bandwidth-gbps", "10", "--scale", "0.5", "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert [graph["name"] for graph in result["graphs"]] == ["mtp_step", "slm_draft", "slm_prefill"]
    for graph in result["graphs"]:
        assert graph.keys() >= KEYS
        assert graph["label"] == result["label"] == "estimate (proxy chip, times scaled by 0.5)"
        assert (graph["us_low"], graph["us"], graph["us_high"]) == (1399.5, 1437.5, 1491.5)
        assert graph["ratio"] == pytest.approx(graph["us"] / graph["floor_us"])
    step = result["graphs"][0]
    assert step["floor_us"] == pytest.approx((step["weight_bytes"] + step["boundary_bytes"]) / 10e9 * 1e6)
    assert result["round_us"] == pytest.approx(5 * 1437.5)
    assert result["floor_us"] == pytest.approx(4 * step["floor_us"] + result["graphs"][1]["floor_us"])
    assert result["round_parts"] == [
        {"kind": "mtp", "graph": "mtp_step", "passes": 4},
        {"kind": "slm", "graph": "slm_draft", "passes": 1},
    ]
    assert result["round_lacks"] == []
    assert result["proxy"] == {"soc_model": 72, "htp_arch": "v81", "vtcm_mb": 8}
    assert (result["scale"], result["bandwidth_gbps"]) == (0.5, 10.0)
    assert result["qnn_version"] == QNN_VERSION
    assert result["unreliable"] is False
    assert result["measured_on_device"] == "not measured"


def test_defaults_and_a_chart(mtp: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart.png"
    result = json.loads(run(mtp, "--chart", chart, "--json").stdout)
    assert (result["scale"], result["bandwidth_gbps"]) == (1.0, 60.0)
    assert result["round_lacks"] == ["slm"]
    assert result["chart"] == str(chart)
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_the_table_labels_its_figures(mtp: Path, tmp_path: Path) -> None:
    done = run(mtp, "--chart", tmp_path / "chart.png")
    assert done.exit_code == 0, done.stderr
    text = done.stdout
    assert text.count("estimate (proxy chip)") == 3
    assert "2.875" in text
    assert "one drafting round (4 x mtp_step): 11.50 ms (11.20 to 11.93)" in text
    assert "the round is not whole: no slm bundle was given" in text
    assert "60 GB/s, an assumption" in text
    assert "On a phone: not measured" in text
    assert "unreliable" not in text
    assert "chart.png" in text


def test_an_unreliable_estimate_says_so(mtp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    def without_cost(qdq: Path, scratch: Path, *, two_bit: bool) -> object:
        made = recorded_compile(qdq, scratch, two_bit=two_bit)
        return replace(made, profile=replace(made.profile, missing_costs=7))

    monkeypatch.setattr("export.estimate.estimate.compile_for_proxy", without_cost)
    assert json.loads(run(mtp, "--json").stdout)["unreliable"] is True
    text = run(mtp).stdout
    assert "7 ops" in text
    assert "unreliable: the compiler has no cost for some operations of mtp_step" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scale", "0"), "--scale is 0.0; want a finite number above 0"),
        (("--scale", "nan"), "--scale is nan"),
        (("--bandwidth-gbps", "-3"), "--bandwidth-gbps is -3.0"),
        (("--bandwidth-gbps", "inf"), "--bandwidth-gbps is inf"),
        (("--chart", "chart.jpg"), "ending in .png"),
    ],
)
def test_wrong_use_exits_with_2(mtp: Path, arguments: tuple[str, str], message: str) -> None:
    done = run(mtp, *arguments, "--json")
    assert done.exit_code == 2
    assert message in json.loads(done.stdout)["error"]


def test_a_chart_in_the_bundle_is_refused(mtp: Path) -> None:
    before = sorted(mtp.rglob("*"))
    done = run(mtp, "--chart", mtp / "chart.png")
    assert done.exit_code == 2
    assert "whose files are hashed" in done.stderr
    assert sorted(mtp.rglob("*")) == before


@pytest.mark.parametrize("arguments", [(), ("--scale", "much", "x"), ("x", "--no-such-option")])
def test_arguments_that_are_none(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_no_bundle_there(tmp_path: Path) -> None:
    done = run(tmp_path / "gone", "--json")
    assert done.exit_code == 1
    assert "there is no such folder" in json.loads(done.stdout)["error"]
