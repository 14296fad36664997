"""`hyco-npu bench` on a hosted phone and with qnn-net-run, against the stand-ins of both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from hyco_npu.bench.graph_report import SUM_LABEL
from hyco_npu.cli import app
from tests.device_runner.graph_bundles import write_head, write_slm
from tests.device_runner.hub_service import PHONE, TOKEN, HubService, loopback_only, profile, running_service
from tests.device_runner.qairt_sdk import StandInSdk, write_sdk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

STEP_US = [9_000, *(4_500, 4_700, 4_600) * 4]
DRAFT_US = [50_000, *(38_000, 39_000, 38_500) * 4]


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[str, ...]:
    head, slm = write_head(tmp_path / "head"), write_slm(tmp_path / "slm")
    return ("--mtp-bundle", str(head.folder), "--slm-bundle", str(slm.folder))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubService]:
    """The stand-in, and a configuration that leads to it and nowhere else."""
    found = HubService(profiles={"mtp_step": profile(STEP_US), "draft": profile(DRAFT_US)}, states=())
    with running_service(found):
        configuration = tmp_path / "client.ini"
        configuration.write_text(
            f"[api]\napi_token = {TOKEN}\napi_url = {found.address}\nweb_url = {found.address}\nverbose = True\n"
        )
        monkeypatch.setenv("QAIHUB_CLIENT_INI", str(configuration))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        loopback_only(monkeypatch)
        yield found


@pytest.fixture
def sdk(tmp_path: Path) -> StandInSdk:
    return write_sdk(tmp_path / "sdk")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_hosted_phone(service: HubService, bundles: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "report"
    done = run("--device", f"hub:{PHONE}", *bundles, "--out", out, "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["device"]["name"] == f"hub:{PHONE}"
    assert (result["valid"], result["round_ms"]) == (True, None)
    assert result["derived_round"]["ms"] == pytest.approx(4 * 4.6 + 38.5)
    assert result["derived_round"]["label"] == SUM_LABEL
    assert json.loads((out / "result.json").read_text()) == {k: v for k, v in result.items() if k != "report"}
    assert service.jobs["j0"].inference_job.options.startswith("--max_profiler_iterations 101 ")
    assert f"{service.address}/jobs/j1/" in {graph["origin"]["url"] for graph in result["graphs"]}
    # the binaries are there for the next run
    assert run("--device", f"hub:{PHONE}", *bundles, "--out", tmp_path / "again").exit_code == 0
    assert (len(service.models), len(service.jobs)) == (2, 4)


def test_a_layer_off_the_npu_ends_with_1(service: HubService, bundles: tuple[str, ...], tmp_path: Path) -> None:
    service.profiles["draft"] = profile(DRAFT_US, ("NPU", "CPU"))
    done = run("--device", f"hub:{PHONE}", *bundles, "--out", tmp_path / "report")
    assert done.exit_code == 1
    assert done.stdout.startswith("INVALID\n- draft: 1 of 2 layers are not on the NPU: layer_1 (CPU)\n")
    assert (tmp_path / "report/result.json").is_file()


def test_no_token(bundles: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path / "absent.ini"))
    done = run("--device", f"hub:{PHONE}", *bundles, "--out", tmp_path / "report", "--json")
    assert done.exit_code == 2
    error = json.loads(done.stdout.splitlines()[-1])
    assert "absent.ini is absent" in error["error"]
    assert "qai-hub configure --api_token" in error["error"]
    assert not (tmp_path / "report").exists()


def test_qnn_net_run(sdk: StandInSdk, bundles: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ("--device", "local", "--runner", "qnn-net-run", "--qairt-sdk", sdk.root, *bundles, "--count", 30)
    done = run(*arguments, "--max-drift", "0.5", "--out", tmp_path / "report", "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["provider"], result["round_ms"]) == ("htp (qnn-net-run)", None)
    assert [graph["ms"]["n"] for graph in result["graphs"]] == [30, 30]
    # runs 1 to 30 of the stand-in take 3.01, 3.02, ... ms
    assert result["derived_round"]["ms"] == pytest.approx(5 * 3.155)
    invalid = run(*arguments, "--out", tmp_path / "drifting")
    assert invalid.exit_code == 1
    assert "INVALID\n- mtp_step: the last third of the runs took 1.065 times" in invalid.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "hub:X", "--runner", "r"), "leave --runner and --qairt-sdk out"),
        (("--runner", "qnn-net-run"), "needs Qualcomm's SDK: --qairt-sdk DIR"),
        (("--qairt-sdk", "."), "--qairt-sdk goes with --runner qnn-net-run"),
        (("--device", "hub:X", "--rounds", "f"), "--rounds is for drafting rounds"),
        (("--device", "hub:X", "--provider", "cpu"), "--provider is for drafting rounds"),
        (("--device", "hub:X", "--blocks", "2"), "--blocks is for drafting rounds"),
        (("--device", "hub:X", "--fit-scale", "s.json"), "--fit-scale is for drafting rounds"),
        (("--device", "hub:X", "--no-estimate"), "--estimate is for drafting rounds"),
        (("--device", "hub:X", "--perf-mode", "burst"), "--perf-mode and --keep are for a phone of one's own"),
        (
            ("--device", "local", "--runner", "qnn-net-run", "--qairt-sdk", ".", *("--perf-mode", "burst") * 2),
            "takes one --perf-mode at a time",
        ),
    ],
)
def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
