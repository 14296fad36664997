"""A bundle's graphs on a phone that Qualcomm hosts (AI Hub): `hyco-npu bench --device hub:"Samsung Galaxy S26 Ultra"`.

    check (token, phone, chip, QAIRT version) -> upload binaries -> one profile job a graph -> wait -> profiles

What is sent is the graph's context binary, a form that profile jobs take as it is (SourceModelType.QNN_CONTEXT_BINARY,
suffix .bin): the weights leave this machine, the tables and the text do not. Each job runs one graph with random input
and no other work between the runs: no drafting round is measured.

Assumed from Qualcomm's documentation and from public users of the service, and not run here: the options
`--max_profiler_iterations`, `--qairt_version` and `--qnn_options context_enable_graphs=NAME` (for a binary of several
graphs), that the runs are listed in their order, and the attributes `hexagon:` and `soc-model:` of a phone. The
requests themselves are tested against a stand-in of the service.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from device_runner.graph_errors import HubError, HubJobError, HubTimeoutError
from device_runner.graph_series import GraphSeries, GraphsMeasurement
from device_runner.hub_client import (
    HubDevice,
    connect,
    find_device,
    own_temporary_files,
    qairt_version,
    require_fit,
    service_errors,
)
from device_runner.hub_profile import parse_profile
from device_runner.hub_record import HubRecord
from device_runner.phone_graphs import phone_graphs
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from device_runner.phone_graphs import PhoneGraph
    from export.bundle import Bundle

_LOG = logging.getLogger(__name__)

HUB_PREFIX = "hub:"
PROVIDER = "htp (AI Hub)"


@dataclass(frozen=True)
class HubOptions:
    """How to profile.

    iterations: runs of each graph. timeout_s: for all jobs together, from the first one's start; poll_s: between two
    looks at a job. record: a file that remembers uploads and jobs under way; None keeps nothing.
    """

    iterations: int = 100
    timeout_s: float = 3600.0
    poll_s: float = 10.0
    record: Path | None = None

    def __post_init__(self) -> None:
        if self.iterations < 2 or not self.timeout_s > 0 or not self.poll_s > 0:
            raise UsageError(
                f"{self.iterations} iterations within {self.timeout_s:g} s, looked at every {self.poll_s:g} s: two "
                "iterations are the least, and times are positive"
            )


@dataclass(frozen=True)
class _Session:
    """What every step needs."""

    client: Any
    device: HubDevice
    qairt: str
    options: HubOptions
    progress: Callable[[str], None]

    @property
    def record(self) -> HubRecord:
        return HubRecord(self.options.record)


def profile_on_hub(
    bundles: Sequence[Bundle], device_name: str, options: HubOptions, progress: Callable[[str], None]
) -> GraphsMeasurement:
    """Profile the head's step graph and the SLM's draft graph, as far as their bundles are given, on a hosted phone.

    Nothing is uploaded before token, phone, chip and QAIRT version are found to fit. Raises:
        HubTokenError: no token, or one that the service refuses.
        DeviceChoiceError: the service lists no phone of that name.
        BundleError: a bundle that is damaged, not compiled, or compiled for another chip.
        HubJobError, HubTimeoutError, HubError: a job failed, took too long, or its profile lacks a figure.
    """
    graphs = phone_graphs(bundles)
    client = connect()
    progress(f"asking AI Hub for {device_name}")
    device = find_device(client, device_name)
    for graph in graphs:
        require_fit(graph, device)
    qairt, full_version = qairt_version(client, graphs)
    session = _Session(client, device, qairt, options, progress)
    models = [_uploaded(session, graph) for graph in graphs]
    deadline = time.monotonic() + options.timeout_s
    jobs = [_submitted(session, graph, model, deadline) for graph, model in zip(graphs, models, strict=True)]
    series = [_measured(session, graph, job, deadline) for graph, job in zip(graphs, jobs, strict=True)]
    return GraphsMeasurement(
        device=f"{HUB_PREFIX}{device.name}",
        identity=None,
        provider=PROVIDER,
        tool="Qualcomm AI Hub profile job",
        clock="one run of the graph, as AI Hub times it",
        inputs="random, drawn by AI Hub",
        qnn_runtime=full_version,
        graphs=tuple(series),
    )


def _uploaded(session: _Session, graph: PhoneGraph) -> Any:
    """The graph's binary at the service: the one of an earlier run, or uploaded now."""
    client, key = session.client, f"{session.client.config.api_url} {graph.binary_sha256}"
    known = session.record.get("models", key)
    if known is not None:
        try:
            with service_errors(f"asking AI Hub for the model {known}"):
                return client.get_model(known)
        except HubError as error:
            _LOG.info("%s is uploaded again: %s", graph.binary.name, error)
    size = graph.binary.stat().st_size
    session.progress(f"uploading {graph.binary.name} ({size / 1e6:.1f} MB)")
    with service_errors(f"uploading {graph.binary.name}"), own_temporary_files():
        model = client.upload_model(str(graph.binary), name=f"hyco-npu {graph.info.name} {graph.binary_sha256[:12]}")
    session.record.put("models", key, model.model_id)
    return model


def job_options(graph: PhoneGraph, qairt: str, iterations: int) -> str:
    """The options of a graph's job; a binary of several graphs needs the name of the one to run."""
    options = f"--max_profiler_iterations {iterations} --qairt_version {qairt}"
    return f"{options} --qnn_options context_enable_graphs={graph.qnn_name}" if graph.shared else options


def _job_key(session: _Session, graph: PhoneGraph) -> str:
    options = job_options(graph, session.qairt, session.options.iterations)
    where = f"{session.client.config.api_url} {session.device.name} {session.device.os}"
    return f"{where} {graph.binary_sha256} {graph.info.name} {options}"


def _submitted(session: _Session, graph: PhoneGraph, model: Any, deadline: float) -> Any:
    """The graph's job: the one of a run that broke off, or a new one; a full queue is waited for."""
    from qai_hub.client import Device, RateLimitedError

    known = session.record.get("jobs", _job_key(session, graph))
    if known is not None:
        try:
            with service_errors(f"asking AI Hub for the job {known}"):
                job = session.client.get_job(known)
            session.progress(f"{graph.info.name}: going on with job {known}")
            return job
        except HubError as error:
            _LOG.info("a new job is submitted for %s: %s", graph.info.name, error)
    while True:
        try:
            with service_errors(f"submitting the job of {graph.info.name}"):
                job = session.client.submit_inference_job(
                    model,
                    device=Device(session.device.name, session.device.os),
                    name=f"hyco-npu {graph.info.name}",
                    options=job_options(graph, session.qairt, session.options.iterations),
                    retry=False,  # the package would print and wait for ten minutes on its own
                    profile=True,
                )
            break
        except HubError as error:
            if not isinstance(error.__cause__, RateLimitedError) or _too_late(session, deadline):
                raise
            session.progress(f"{graph.info.name}: AI Hub takes no more jobs now, waiting")
            time.sleep(session.options.poll_s)
    session.record.put("jobs", _job_key(session, graph), job.job_id)
    session.progress(f"{graph.info.name}: job {job.job_id}, {job.url}")
    return job


def _too_late(session: _Session, deadline: float) -> bool:
    return time.monotonic() + session.options.poll_s > deadline


def _finished(session: _Session, graph: PhoneGraph, job: Any, deadline: float) -> None:
    """Wait for a job; what the package's own wait prints is progress here."""
    said = None
    while True:
        with service_errors(f"asking AI Hub for the state of job {job.job_id}"):
            status = job.get_status()
        if status.code != said:
            said = status.code
            session.progress(f"{graph.info.name}: {said.lower().replace('_', ' ')}")
        if status.finished:
            session.record.put("jobs", _job_key(session, graph), None)
            break
        if _too_late(session, deadline):
            again = "run the same command again to go on waiting" if session.options.record else "see there"
            raise HubTimeoutError(
                f"the job of {graph.info.name} is {said} after {session.options.timeout_s:g} s; it goes on at AI Hub, "
                f"{again}: {job.url}"
            )
        time.sleep(session.options.poll_s)
    if not status.success:
        reason = status.message or "no reason is given"
        raise HubJobError(f"the job of {graph.info.name} failed on {session.device.name}: {reason}; see {job.url}")


def _measured(session: _Session, graph: PhoneGraph, job: Any, deadline: float) -> GraphSeries:
    _finished(session, graph, job, deadline)
    with service_errors(f"downloading the profile of job {job.job_id}"):
        profile = job.download_profile()
    found = parse_profile(profile, f"{graph.info.name}, job {job.job_id},")
    return GraphSeries(
        kind=graph.bundle.manifest.kind,
        bundle=graph.bundle.folder,
        binary_sha256=graph.binary_sha256,
        graph=graph.info.name,
        rows=graph.info.rows,
        passes=graph.passes,
        series_ms=found.series_ms,
        loads_ms=found.loads_ms,
        origin={"job": job.job_id, "url": job.url, "options": job.options, "android": session.device.os},
        peak_memory_bytes=found.peak_memory_bytes,
        layers=found.layers,
        off_npu=found.off_npu,
    )
