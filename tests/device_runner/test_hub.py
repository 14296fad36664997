"""Profiling on a hosted phone: the package's own requests, against a stand-in of the service on the loopback.

No request can leave: connections to other addresses are refused, and the only configuration is the tests' own.
"""

from __future__ import annotations

import json
import socket
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from qai_hub import public_api_pb2 as pb

from device_runner.errors import DeviceChoiceError
from device_runner.graph_errors import HubError, HubJobError, HubTimeoutError, HubTokenError
from device_runner.hub import HubOptions, profile_on_hub
from export.errors import BundleError
from quant.errors import UsageError
from tests.device_runner.graph_bundles import DRAFT_NAME, TARGET, write_head, write_slm
from tests.device_runner.hub_service import (
    PHONE,
    TOKEN,
    HubService,
    device,
    framework,
    loopback_only,
    profile,
    running_service,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_runner.graph_series import GraphsMeasurement
    from export.bundle import Bundle

STEP_US, DRAFT_US = [4_900, 4_700, 4_650, 4_800], [41_000, 38_000, 38_500]
QUICK = HubOptions(iterations=4, timeout_s=20.0, poll_s=0.01)


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing but the loopback can be connected to, no proxy is asked, and no user's configuration is there."""
    loopback_only(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("QAIHUB_CLIENT_INI", raising=False)
    for name in ("MAX_RETRIES", "BACKOFF_FACTOR"):
        monkeypatch.setattr(f"qai_hub.util.session.{name}", 0)


@pytest.fixture
def service() -> Iterator[HubService]:
    found = HubService(profiles={"mtp_step": profile(STEP_US), "draft": profile(DRAFT_US)})
    with running_service(found):
        yield found


@pytest.fixture
def configured(service: HubService, tmp_path: Path) -> Path:
    """The package's configuration file with the tests' token, leading to the stand-in."""
    return write_configuration(service, tmp_path, TOKEN)


def write_configuration(service: HubService, home: Path, token: str) -> Path:
    path = home / ".qai_hub/client.ini"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"[api]\napi_token = {token}\napi_url = {service.address}\nweb_url = {service.address}\nverbose = True\n"
    )
    return path


@pytest.fixture
def head(tmp_path: Path) -> Bundle:
    return write_head(tmp_path / "head")


@pytest.fixture
def slm(tmp_path: Path) -> Bundle:
    return write_slm(tmp_path / "slm")


def run(*bundles: Bundle, name: str = PHONE, options: HubOptions = QUICK) -> GraphsMeasurement:
    return profile_on_hub(bundles, name, options, lambda text: None)


def no_upload(service: HubService) -> bool:
    return service.count("POST", "/") == 0 and service.count("PUT", "/") == 0


@pytest.mark.usefixtures("configured")
def test_both_graphs_are_uploaded_run_and_read(
    service: HubService, head: Bundle, slm: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    found = profile_on_hub([slm, head], PHONE, QUICK, said.append)
    step, draft = found.graphs
    assert (found.device, found.provider, found.qnn_runtime) == (f"hub:{PHONE}", "htp (AI Hub)", "2.51.0.260929181845")
    assert (step.kind, step.graph, step.rows, step.passes) == ("mtp", "mtp_step", 1, 4)
    assert (draft.kind, draft.graph, draft.rows, draft.passes) == ("slm", "draft", 2, 1)
    assert step.series_ms == (4.9, 4.7, 4.65, 4.8)
    assert draft.series_ms == (41.0, 38.0, 38.5)
    assert step.loads_ms == {"first": 812.345, "warm": 98.765}
    assert (step.peak_memory_bytes, step.layers, step.off_npu) == (150_000_000, {"NPU": 3}, ())
    assert step.origin["url"] == f"{service.address}/jobs/j0/"
    # what reached the service
    assert service.uploaded("m0") == head.path("step.bin").read_bytes()
    assert service.uploaded("m1") == slm.path("shared.bin").read_bytes()
    assert {model.model_type for model in service.models.values()} == {pb.ModelType.MODEL_TYPE_QNN_CONTEXT_BINARY}
    first, second = (service.jobs[name].inference_job for name in ("j0", "j1"))
    assert first.options == "--max_profiler_iterations 4 --qairt_version 2.51"
    assert second.options == f"{first.options} --qnn_options context_enable_graphs={DRAFT_NAME}"
    assert [(job.model.model_id, job.device.name, job.device.os) for job in (first, second)] == [
        ("m0", PHONE, "16"),
        ("m1", PHONE, "16"),
    ]
    assert first.is_profiling_on
    assert second.is_profiling_on
    # both jobs are submitted before one is waited for, and nothing is printed
    jobs = [path for method, path in service.requests if "/jobs/" in path and (method, path[-3:]) != ("GET", "lt/")]
    assert jobs[:2] == ["/api/v1/jobs/", "/api/v1/jobs/"]
    assert [text for text in said if text.startswith("mtp_step: ")] == [
        f"mtp_step: job j0, {service.address}/jobs/j0/",
        "mtp_step: provisioning device",
        "mtp_step: measuring performance",
        "mtp_step: success",
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("configured")
def test_a_large_binary_goes_in_parts(service: HubService, head: Bundle) -> None:
    service.part_bytes = 100
    run(head)
    assert len(service.parts["m0"]) > 1
    assert service.uploaded("m0") == head.path("step.bin").read_bytes()


def test_no_token_is_an_error_before_any_request(service: HubService, head: Bundle) -> None:
    with pytest.raises(HubTokenError, match=r"client\.ini is absent; take yours from .*qai-hub configure --api_token"):
        run(head)
    assert service.requests == []


@pytest.mark.parametrize("text", ["", "[api]\napi_url = x\n", "no ini"])
def test_a_configuration_without_a_token(service: HubService, head: Bundle, tmp_path: Path, text: str) -> None:
    write_configuration(service, tmp_path, "").write_text(text)
    with pytest.raises(HubTokenError, match=r"client\.ini is no configuration of qai-hub.*qai-hub configure"):
        run(head)


def test_an_empty_token(service: HubService, head: Bundle, tmp_path: Path) -> None:
    write_configuration(service, tmp_path, "")
    with pytest.raises(HubTokenError, match=r"holds no token of Qualcomm AI Hub.*qai-hub configure"):
        run(head)
    assert service.requests == []


def test_a_token_that_is_refused(service: HubService, head: Bundle, tmp_path: Path) -> None:
    write_configuration(service, tmp_path, "another")
    with pytest.raises(HubTokenError, match=r"does not take the token; .*qai-hub configure"):
        run(head)
    assert no_upload(service)


@pytest.mark.usefixtures("configured")
def test_a_phone_that_is_not_listed(service: HubService, head: Bundle) -> None:
    service.devices += [device("Google Pixel 9")]
    with pytest.raises(DeviceChoiceError) as error:
        run(head, name="samsung galaxy s26")
    assert "'Samsung Galaxy S26 Ultra', 'Samsung Galaxy S25 Ultra'" in str(error.value)
    assert "Pixel" not in str(error.value)
    assert no_upload(service)


@pytest.mark.usefixtures("configured")
def test_the_latest_android_of_a_phone_is_taken(service: HubService, head: Bundle) -> None:
    service.devices = [device(PHONE, "9"), device(PHONE, "16"), device(PHONE, "15")]
    assert run(head).graphs[0].origin["android"] == "16"


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize(("wrong", "named"), [("hexagon:v79", "hexagon:v81"), ("soc-model:69", "soc-model:87")])
def test_another_chip_is_refused(service: HubService, head: Bundle, wrong: str, named: str) -> None:
    service.devices = [device(PHONE, "16", "framework:qnn", wrong)]
    with pytest.raises(BundleError, match=rf"compiled for sm8850 \({named}\), but {PHONE} has {wrong}"):
        run(head)
    assert no_upload(service)


@pytest.mark.usefixtures("configured")
def test_no_qairt_is_new_enough(service: HubService, head: Bundle) -> None:
    service.frameworks = [framework("2.45", "2.45.0.1"), framework("2.50", "2.50.0.1"), framework("9", "9.0", "LiteRT")]
    with pytest.raises(HubError, match=r"compiled by QNN v2\.51.*newest QAIRT of AI Hub is 2\.50\.0\.1"):
        run(head)
    assert no_upload(service)


@pytest.mark.usefixtures("configured")
def test_a_damaged_binary_is_not_sent(service: HubService, head: Bundle) -> None:
    head.path("step.bin").write_text("{}")
    with pytest.raises(BundleError, match=r"damaged: step\.bin has sha256"):
        run(head)
    assert service.requests == []


@pytest.mark.usefixtures("configured")
def test_a_failed_job_gives_its_reason_and_address(service: HubService, head: Bundle) -> None:
    service.failures["mtp_step"] = "Failed to load the context binary"
    with pytest.raises(HubJobError, match=r"mtp_step failed on .*: Failed to load the context binary; see http.*/j0/"):
        run(head)


@pytest.mark.usefixtures("configured")
def test_a_job_that_takes_too_long_is_gone_on_with(service: HubService, head: Bundle, tmp_path: Path) -> None:
    options = replace(QUICK, timeout_s=0.05, record=tmp_path / "state/hub.json")
    service.states = (pb.JobState.JOB_STATE_PROVISIONING_DEVICE,) * 1000
    with pytest.raises(HubTimeoutError, match=r"PROVISIONING_DEVICE after 0\.05 s; .*same command again.*/jobs/j0/"):
        run(head, options=options)
    service.states = ()
    assert run(head, options=options).graphs[0].origin["job"] == "j0"
    assert (len(service.models), len(service.jobs)) == (1, 1)
    # a finished job is no new measurement; its binary is there
    assert run(head, options=options).graphs[0].origin["job"] == "j1"
    assert (len(service.models), len(service.jobs)) == (1, 2)
    assert json.loads((tmp_path / "state/hub.json").read_text())["jobs"] == {}


@pytest.mark.usefixtures("configured")
def test_what_the_service_has_forgotten_is_sent_again(service: HubService, head: Bundle, tmp_path: Path) -> None:
    options = replace(QUICK, record=tmp_path / "hub.json")
    run(head, options=options)
    fields = json.loads((tmp_path / "hub.json").read_text())
    fields["models"] = dict.fromkeys(fields["models"], "gone")
    (tmp_path / "hub.json").write_text(json.dumps(fields))
    run(head, options=options)
    assert sorted(service.models) == ["m0", "m1"]


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("text", ["no JSON", '{"schema_version": 1}', '{"schema_version": 9}'])
def test_a_damaged_record(service: HubService, head: Bundle, tmp_path: Path, text: str) -> None:
    (tmp_path / "hub.json").write_text(text)
    with pytest.raises(HubError, match=r"hub\.json"):
        run(head, options=replace(QUICK, record=tmp_path / "hub.json"))
    assert no_upload(service)


@pytest.mark.usefixtures("configured")
def test_a_full_queue_is_waited_for(service: HubService, head: Bundle) -> None:
    service.refuse_jobs = 2
    said: list[str] = []
    profile_on_hub([head], PHONE, QUICK, said.append)
    assert said.count("mtp_step: AI Hub takes no more jobs now, waiting") == 2


@pytest.mark.usefixtures("configured")
def test_a_full_queue_is_not_waited_for_longer_than_the_time(service: HubService, head: Bundle) -> None:
    service.refuse_jobs = 10_000
    with pytest.raises(HubError, match=r"submitting the job of mtp_step failed: .*too many jobs"):
        run(head, options=replace(QUICK, timeout_s=0.05))


@pytest.mark.usefixtures("configured")
def test_a_broken_upload_leaves_nothing_behind(
    service: HubService, head: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    service.break_uploads = 1
    options = replace(QUICK, record=tmp_path / "hub.json")
    with pytest.raises(HubError, match=r"uploading step\.bin failed: .*AccessDenied"):
        run(head, options=options)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert tempfile.gettempdir() == str(tmp_path / "tmp")
    assert not (tmp_path / "hub.json").exists()
    assert run(head, options=options).graphs[0].series_ms == (4.9, 4.7, 4.65, 4.8)


@pytest.mark.usefixtures("configured")
def test_a_service_that_is_not_there(service: HubService, head: Bundle, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        service.address = f"http://127.0.0.1:{free.getsockname()[1]}"
    write_configuration(service, tmp_path, TOKEN)
    with pytest.raises(HubError, match=r"asking AI Hub for its phones failed: .*Could not connect"):
        run(head)


@pytest.mark.usefixtures("configured")
def test_layers_off_the_npu_are_named(service: HubService, head: Bundle) -> None:
    service.profiles["mtp_step"] = profile(STEP_US, ("NPU", "CPU", "NPU", "GPU"))
    step = run(head).graphs[0]
    assert step.layers == {"NPU": 2, "CPU": 1, "GPU": 1}
    assert step.off_npu == ("layer_1 (CPU)", "layer_3 (GPU)")


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"all_execution_times": []}, r"no series of run times, but \[\]"),
        ({"minor_version": 0}, "no series of run times, but None"),
        ({"major_version": 0}, "no series of run times, but None"),
        ({"layer_details": []}, "lists no layer"),
        ({"cold_load_time": 0}, "first_load_time 0 where a positive number"),
        ({"after_execution_peak_memory": 0}, "estimated_inference_peak_memory 0"),
    ],
)
def test_a_profile_that_lacks_a_figure(
    service: HubService, head: Bundle, changes: dict[str, Any], message: str
) -> None:
    service.profiles["mtp_step"] = profile(STEP_US, **changes)
    with pytest.raises(HubError, match=rf"the profile of mtp_step, job j0, .*{message}"):
        run(head)


@pytest.mark.usefixtures("configured")
def test_a_job_without_a_profile(service: HubService, head: Bundle) -> None:
    service.profiles.clear()
    with pytest.raises(HubError, match=r"has the parts \[\]"):
        run(head)


@pytest.mark.usefixtures("configured")
def test_bundles_that_do_not_make_a_round(service: HubService, head: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\['mtp', 'mtp'\]"):
        run(head, head)
    with pytest.raises(UsageError, match=r"kinds \[\] were given"):
        run()
    plain = replace_targets(tmp_path)
    with pytest.raises(BundleError, match="compiled for no chip"):
        run(plain)
    assert service.requests == []


def replace_targets(tmp_path: Path) -> Bundle:
    return write_head(tmp_path / "plain", targets=(TARGET.model_copy(update={"compiled": False, "simulated": False}),))


@pytest.mark.parametrize("options", [{"iterations": 1}, {"timeout_s": 0.0}, {"poll_s": 0.0}])
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="two iterations are the least"):
        HubOptions(**options)
