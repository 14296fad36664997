"""Graphs timed by Qualcomm's own tool: `hyco-npu bench --runner qnn-net-run --qairt-sdk DIR`, a control measurement.

    check (SDK's build, chip, graphs in the binary) -> push -> for each graph: run, pull the log, read it on the host

It needs no build of ours, so a fault of our runner does not touch it. It runs each graph by itself with the same input
over and over: no whole round, no CPU share. Times are taken with the tool's basic profiling on.

Assumed from Qualcomm's documentation and from public users of the tool, and not run here: the options of qnn-net-run,
`__` for a graph of the binary that is not to run, and the forms that `net_run_profile`, `net_run_binary` and
`net_run_files` describe. Everything is tested against stand-ins of the SDK's programs.
"""

from __future__ import annotations

import posixpath
import re
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.awake import kept_awake
from device_runner.bench_run import PERF_MODES
from device_runner.facts import read_facts
from device_runner.graph_errors import NetRunError
from device_runner.graph_series import GraphSeries, GraphsMeasurement
from device_runner.net_run_binary import place_in_binary, read_binary_graphs
from device_runner.net_run_files import CONFIG, RECORDED, ZEROS, binary_name, list_name, stage
from device_runner.net_run_profile import read_times
from device_runner.net_run_sdk import BACKEND, NET_RUN, QairtSdk
from device_runner.phone_graphs import phone_graphs
from device_runner.push import PushOptions, pushed_folder
from device_runner.remote_files import pull_verified, remove
from device_runner.thermal_gate import wait_until_cool
from device_runner.transport import Command, Timeout
from export.bundle import RuntimeTarget, require_target
from export.errors import BundleError
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from device_runner.bench_run import BenchDevice
    from device_runner.devices import Identity
    from device_runner.net_run_files import Codes
    from device_runner.phone_graphs import PhoneGraph
    from device_runner.thermal_gate import ThermalGate
    from export.bundle import Bundle

RUNNER = "qnn-net-run"
_CALL, _RUN = Timeout(60.0), Timeout(600.0)
_SKIPPED = "__"
_LOG_NAME = re.compile(r"qnn-profiling-data(_\d+)?\.log")


@dataclass(frozen=True)
class NetRunOptions:
    """How to measure.

    inferences: runs of each graph. codes: recorded inputs by graph; None feeds the value 0. gate: None runs on a warm
    phone, too.
    """

    inferences: int = 100
    perf_profile: str = "burst"
    codes: Codes | None = None
    gate: ThermalGate | None = None
    push: PushOptions = field(default_factory=lambda: PushOptions("net-run"))
    run: Timeout = _RUN

    def __post_init__(self) -> None:
        if self.inferences < 2 or self.perf_profile not in PERF_MODES:
            raise UsageError(
                f"{self.inferences} inferences with the profile {self.perf_profile!r}: at least two, and one of "
                f"{', '.join(PERF_MODES)}"
            )


@dataclass(frozen=True)
class _Run:
    """Where and how a graph runs; host: a folder for files that come back."""

    device: BenchDevice
    remote: str
    host: Path
    sdk: QairtSdk
    options: NetRunOptions


def measure_with_net_run(
    device: BenchDevice,
    bundles: Sequence[Bundle],
    sdk_root: Path,
    options: NetRunOptions,
    progress: Callable[[str], None],
) -> GraphsMeasurement:
    """Time the head's step graph and the SLM's draft graph, as far as their bundles are given, with qnn-net-run.

    Raises:
        SdkError, PieceError: the SDK lacks a file, or its pieces are of several builds.
        BundleError: a bundle that is damaged, not compiled, for another chip, or of a newer QNN than the SDK's.
        NetRunError: a tool failed, or its output lacks a figure. DeviceError: see Transport.
    """
    graphs = phone_graphs(bundles)
    targets = {graph.target.target: graph.target for graph in graphs}
    if len(targets) != 1:
        raise UsageError(f"the bundles are compiled for {', '.join(targets)}: give two of one chip")
    sdk = QairtSdk.load(sdk_root, graphs[0].target.htp_arch)
    for graph in graphs:
        _require_fit(graph, sdk, device.identity)
    with tempfile.TemporaryDirectory(prefix="hyco-net-run-") as scratch:
        staged, host = Path(scratch, "staged"), Path(scratch, "host")
        staged.mkdir()
        host.mkdir()
        lists = {graph.info.name: _input_lists(graph, sdk, host) for graph in graphs}
        stage(staged, graphs, sdk, options.perf_profile, options.codes)
        transport = device.transport
        progress(f"pushing {NET_RUN}, libraries and {len(graphs)} binaries to {transport.name}")
        awake: AbstractContextManager[object] = nullcontext() if device.identity is None else kept_awake(transport)
        with pushed_folder(transport, staged, options.push) as pushed, awake:
            run = _Run(device, pushed.remote, host, sdk, options)
            transport.shell(Command(("chmod", "755", posixpath.join(pushed.remote, NET_RUN))), _CALL).checked()
            series = []
            for graph in graphs:
                progress(f"{graph.info.name}: {options.inferences} runs with {RUNNER}")
                series.append(_measured(run, graph, lists[graph.info.name]))
    return GraphsMeasurement(
        device=device.transport.name,
        identity=device.identity,
        provider=f"htp ({RUNNER})",
        tool=f"{RUNNER} of QAIRT {sdk.build}, --perf_profile {options.perf_profile}",
        clock="one graphExecute as qnn-net-run times it, basic profiling on",
        inputs=ZEROS if options.codes is None else RECORDED,
        qnn_runtime=sdk.build,
        graphs=tuple(series),
    )


def _require_fit(graph: PhoneGraph, sdk: QairtSdk, identity: Identity | None) -> None:
    target = graph.target
    require_target(graph.bundle, RuntimeTarget(target.target, target.soc_model, target.htp_arch, sdk.build))
    chip = identity.soc_model if identity is not None else None
    if chip is not None and chip.lower() != target.target:
        raise BundleError(
            f"bundle {graph.bundle.folder} is compiled for {target.target}, the phone has {chip}: export with "
            f"--target {chip.lower()}"
        )


def _input_lists(graph: PhoneGraph, sdk: QairtSdk, host: Path) -> str:
    """--input_list for the graph's binary: its own list at its place, the other graphs skipped."""
    described = host / f"{graph.info.name}.json"
    sdk.describe_binary(graph.binary, described)
    graphs = read_binary_graphs(described)
    place = place_in_binary(graph, graphs)
    return ",".join(list_name(graph) if number == place else _SKIPPED for number in range(len(graphs)))


def _measured(run: _Run, graph: PhoneGraph, lists: str) -> GraphSeries:
    options, transport = run.options, run.device.transport
    output = f"out_{graph.info.name}"
    command = _command(run, graph, lists, output)
    on_phone = run.device.identity is not None
    cool_down = wait_until_cool(transport, options.gate) if options.gate is not None and on_phone else None
    remove(transport, [posixpath.join(run.remote, output)], _CALL)
    before = read_facts(transport, _CALL) if on_phone else None
    transport.shell(command, options.run).checked()
    after = read_facts(transport, _CALL) if on_phone else None
    log, table = run.host / f"{graph.info.name}.log", run.host / f"{graph.info.name}.csv"
    pull_verified(transport, _profiling_log(run, output), log, _CALL)
    remove(transport, [posixpath.join(run.remote, output)], _CALL)
    run.sdk.view_profile(log, table)
    times = read_times(table, graph.qnn_name, options.inferences)
    return GraphSeries(
        kind=graph.bundle.manifest.kind,
        bundle=graph.bundle.folder,
        binary_sha256=graph.binary_sha256,
        graph=graph.info.name,
        rows=graph.info.rows,
        passes=graph.passes,
        series_ms=times.netrun_ms,
        loads_ms={"binary": times.load_ms},
        origin={"command": str(command)},
        other_ms=times.other_ms,
        cool_down=cool_down,
        before=before,
        after=after,
    )


def _command(run: _Run, graph: PhoneGraph, lists: str, output: str) -> Command:
    arguments = {
        "--retrieve_context": binary_name(graph),
        "--backend": BACKEND,
        "--config_file": CONFIG,
        "--input_list": lists,
        "--output_dir": output,
        "--num_inferences": str(run.options.inferences),
        "--keep_num_outputs": "1",  # the logits of one run are megabytes
        "--perf_profile": run.options.perf_profile,
        "--profiling_level": "basic",
    }
    pairs = (word for pair in arguments.items() for word in pair)
    return Command(
        (f"./{NET_RUN}", *pairs, "--use_native_input_files", "--use_native_output_files"),
        cwd=run.remote,
        env={"LD_LIBRARY_PATH": ".", "ADSP_LIBRARY_PATH": "."},
    )


def _profiling_log(run: _Run, output: str) -> str:
    """The log of the run: a counted file, beside which some releases put a link without a number."""
    folder = posixpath.join(run.remote, output)
    listed = run.device.transport.shell(Command(("ls", "-1", folder)), _CALL).checked().split()
    logs = sorted((name for name in listed if _LOG_NAME.fullmatch(name)), key=len, reverse=True)
    if not logs:
        raise NetRunError(f"{NET_RUN} left no qnn-profiling-data.log in {folder}, but {listed or 'nothing'}")
    return posixpath.join(folder, logs[0])
