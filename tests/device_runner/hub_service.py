"""A stand-in for Qualcomm AI Hub's service, on the loopback: NOT the service, and no measure of anything.

It answers the requests that the package qai-hub 0.56 makes for profile jobs, with the package's own protobuf messages,
as far as they can be read off the package's source: phones, QAIRT versions, uploads in parts, jobs, their states and
results. Uploads with AWS credentials, the other way that the package knows, are not part of it.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from qai_hub import public_api_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

TOKEN = "token-of-the-tests"
PHONE = "Samsung Galaxy S26 Ultra"
RUNNING = (pb.JobState.JOB_STATE_PROVISIONING_DEVICE, pb.JobState.JOB_STATE_MEASURING_PERFORMANCE)


def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but the loopback be connected to, and no proxy be asked: no request of a test can leave."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        assert address[0] == "127.0.0.1", f"a test wanted to connect to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setenv("NO_PROXY", "*")


def device(name: str, os: str = "16", *attributes: str) -> Any:
    """A hosted phone; by default one with the chip of Galaxy S26."""
    chip = attributes or ("framework:qnn", "os:android", "hexagon:v81", "soc-model:87")
    return pb.Device(name=name, os=os, attributes=chip)


def framework(api_version: str, full_version: str, name: str = "QAIRT") -> Any:
    """A version that jobs can run with."""
    return pb.Framework(name=name, api_version=api_version, full_version=full_version)


def profile(times_us: list[int], units: tuple[str, ...] = ("NPU", "NPU", "NPU"), **changes: Any) -> Any:
    """A profile of version 1.2: series, loads and memory, one layer for each unit."""
    fields = {
        "major_version": 1,
        "minor_version": 2,
        "execution_time": min(times_us, default=0),
        "after_execution_peak_memory": 150_000_000,
        "cold_load_time": 812_345,
        "warm_load_time": 98_765,
        "all_execution_times": times_us,
        "layer_details": [
            pb.LayerDetail(
                name=f"layer_{n}", layer_type_name="op", compute_unit=pb.ComputeUnit.Value(f"COMPUTE_UNIT_{u}")
            )
            for n, u in enumerate(units)
        ],
    }
    return pb.ProfileDetail(**{**fields, **changes})


@dataclass
class HubService:
    """What the stand-in knows, what it was told, and what goes wrong.

    profiles: by graph name, which the job's name ends with. states: what a job's looks get, then its end. failures:
    graph name -> reason. part_bytes: of an upload. refuse_jobs: so many submissions are turned away as too many.
    break_uploads: so many parts are answered with an error.
    """

    devices: list[Any] = field(default_factory=lambda: [device(PHONE), device("Samsung Galaxy S25 Ultra", "15")])
    frameworks: list[Any] = field(
        default_factory=lambda: [
            framework("2.45", "2.45.0.260326154327"),
            framework("2.60", "2.60.0.261101000000"),
            framework("2.51", "2.51.0.260929181845"),
            framework("1.27", "1.27.0", "ONNX Runtime"),
        ]
    )
    profiles: dict[str, Any] = field(default_factory=dict)
    states: tuple[Any, ...] = RUNNING
    failures: dict[str, str] = field(default_factory=dict)
    part_bytes: int = 1 << 20
    refuse_jobs: int = 0
    break_uploads: int = 0
    address: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    models: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    jobs: dict[str, Any] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)

    def uploaded(self, model_id: str) -> bytes:
        """A model's bytes, its parts in order."""
        return b"".join(self.parts[model_id][number] for number in sorted(self.parts[model_id]))

    def count(self, method: str, start: str) -> int:
        """How many requests of a kind came."""
        return sum(one == method and path.startswith(start) for one, path in self.requests)

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Any:
        """The message for a request of the API, None where there is no such thing."""
        match method, path.removeprefix("/api/v1/").strip("/").split("/"):
            case "GET", ["devices"]:
                return self._devices(query)
            case "GET", ["frameworks"]:
                return pb.FrameworkList(frameworks=self.frameworks)
            case "POST", ["models"]:
                return self._new_model(pb.Model.FromString(body))
            case "GET", ["models", identifier] if identifier in self.models:
                return self.models[identifier]
            case "GET", ["models", identifier, "multipart_upload"]:
                return self._places(identifier, int(query["file_size"][0]))
            case "POST", ["models", identifier, "multipart_upload"]:
                return self._complete(identifier, pb.FileMultipartUploadComplete.FromString(body))
            case "POST", ["jobs"]:
                return self._new_job(pb.Job.FromString(body))
            case "GET", ["jobs", identifier] if identifier in self.jobs:
                return self._look(identifier)
            case "GET", ["jobs", identifier, "result"] if identifier in self.jobs:
                detail = self.profiles.get(self._graph(identifier))
                return pb.JobResult(inference_job_result=pb.InferenceJobResult(detail=detail))
            case _:
                return None

    def _devices(self, query: dict[str, list[str]]) -> Any:
        name, os = (query.get(key, [""])[0] for key in ("name", "os"))
        found = [one for one in self.devices if name in ("", one.name) and os in ("", one.os)]
        return pb.DeviceList(devices=found[:1] if query.get("select") == ["True"] else found)

    def _new_model(self, model: Any) -> Any:
        identifier = f"m{len(self.models)}"
        model.model_id = identifier
        self.models[identifier], self.parts[identifier] = model, {}
        return pb.CreateUpdateResponse(id=identifier)

    def _places(self, identifier: str, size: int) -> Any:
        count = -(-size // self.part_bytes)
        urls = [f"{self.address}/upload/{identifier}/{number}" for number in range(count)]
        place = pb.FileMultipartUploadURL(urls=urls, upload_id="u", max_part_size=self.part_bytes)
        return pb.FileUploadResponse(multipart_url=place)

    def _complete(self, identifier: str, told: Any) -> Any:
        assert list(told.etags) == [f"etag-{number}" for number in sorted(self.parts[identifier])]
        self.models[identifier].file_upload_complete = True
        return pb.CreateUpdateResponse(id=identifier)

    def _new_job(self, job: Any) -> Any:
        identifier = f"j{len(self.jobs)}"
        job.inference_job.inference_job_id = identifier
        self.jobs[identifier], self.looks[identifier] = job, 0
        return pb.CreateUpdateResponse(id=identifier)

    def _graph(self, identifier: str) -> str:
        name: str = self.jobs[identifier].inference_job.name
        return name.split()[-1]

    def _look(self, identifier: str) -> Any:
        """A job's state, one step on at each look."""
        job, look = self.jobs[identifier], self.looks[identifier]
        self.looks[identifier] += 1
        reason = self.failures.get(self._graph(identifier))
        if look < len(self.states):
            job.inference_job.job_state = self.states[look]
        elif reason is not None:
            job.inference_job.job_state = pb.JobState.JOB_STATE_FAILED
            job.inference_job.failure_reason = reason
        else:
            job.inference_job.job_state = pb.JobState.JOB_STATE_DONE
        return job


@contextmanager
def running_service(service: HubService) -> Iterator[None]:
    """Serve on a free port of the loopback; `service.address` is its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    service.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(service: HubService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_PUT(self) -> None:
            body = self._body()
            _, _, identifier, number = self.path.split("/")
            service.requests.append(("PUT", self.path))
            if service.break_uploads > 0:
                service.break_uploads -= 1
                self._send(403, b"<Code>AccessDenied</Code><Message>no</Message>", {})
                return
            service.parts[identifier][int(number)] = body
            self._send(200, b"", {"ETag": f"etag-{number}"})

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _serve(self, method: str) -> None:
            body, parts = self._body(), urlsplit(self.path)
            service.requests.append((method, parts.path))
            if self.headers["Authorization"] != f"token {TOKEN}":
                self._send(401, b"", {})
                return
            if method == "POST" and parts.path == "/api/v1/jobs/" and service.refuse_jobs > 0:
                service.refuse_jobs -= 1
                self._send(429, b'{"detail": "too many jobs"}', {})
                return
            message = service.answer(method, parts.path, parse_qs(parts.query), body)
            if message is None:
                self._send(404, b'{"detail": "there is no such thing"}', {})
            else:
                self._send(200, message.SerializeToString(), {"Content-Type": "application/x-protobuf"})

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    return Handler
