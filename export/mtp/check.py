"""The stages of a bundle on its held-out samples: fp32 -> fake-quantised -> QDQ on the CPU -> HTP simulator.

Every stage is compared with the one before it, so that a loss has an address: transformers' own head, the float graph,
rounded weights, rounded activations, Qualcomm's arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from export.bundle.boundary import boundary_of
from export.bundle.reader import Bundle, verify_files
from export.checkpoint.mtp import MtpConfig
from export.engines.cpu import QuantizedGraph, cpu_session
from export.engines.htp import TARGETS, simulator_session, why_unavailable
from export.errors import BundleError
from export.graphs.feeds import FeedBuilder
from export.mtp.samples import Samples, load_samples, run_samples
from export.parity import CPU_STAGE, SIMULATOR_STAGE, CheckResult, Stage, compare, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


GRAPH_NAME = "mtp_step"
SAMPLES_FILE = "check/samples.safetensors"


def check_bundle(bundle: Bundle, limit: int | None, progress: Callable[[str], None]) -> CheckResult:
    """Verify the hashes, then run the stages on `limit` samples spread evenly (None: all).

    Raises:
        BundleError: the bundle holds no samples or does not describe an MTP head.
    """
    problems = tuple(str(problem) for problem in verify_files(bundle))
    if problems:
        return CheckResult([], problems=problems)
    samples = load_samples(bundle.path(SAMPLES_FILE))
    indices = spread(len(samples), limit)
    if not indices:
        raise BundleError(f"bundle {bundle.folder}: no samples to check; export it again, or raise the limit")
    builder = FeedBuilder(head_config(bundle), bundle.manifest.window, bundle.manifest.position_rule)
    stages = reference_stages(samples, indices)
    progress(f"{CPU_STAGE}: {len(indices)} steps")
    on_cpu = run_samples(samples, builder, open_cpu(bundle), indices)
    stages.append(compare(CPU_STAGE, on_cpu.named, "fake_quant", samples.references["fake_quant"].at(indices).named))
    reason = why_unavailable() or _not_compiled(bundle)
    if reason:
        return CheckResult(stages, {SIMULATOR_STAGE: reason})
    progress(f"{SIMULATOR_STAGE}: {len(indices)} steps")
    simulated = run_samples(samples, builder, open_simulator(bundle), indices)
    stages.append(compare(SIMULATOR_STAGE, simulated.named, CPU_STAGE, on_cpu.named))
    return CheckResult(stages)


def reference_stages(samples: Samples, indices: Sequence[int]) -> list[Stage]:
    """The stages recorded at export: float graph against transformers, rounded weights against the float graph."""
    outputs = {name: reference.at(indices).named for name, reference in samples.references.items()}
    pairs = (("fp32", "transformers"), ("fake_quant", "fp32"))
    return [compare(name, outputs[name], against, outputs[against]) for name, against in pairs]


def head_config(bundle: Bundle) -> MtpConfig:
    """The head's dimensions as the manifest records them."""
    try:
        return TypeAdapter(MtpConfig).validate_python(bundle.manifest.source.config)
    except ValidationError as error:
        raise BundleError(f"manifest: source.config does not describe an MTP head: {error}; export again") from error


def open_cpu(bundle: Bundle) -> QuantizedGraph:
    """The bundle's QDQ graph on ONNX Runtime's CPU provider."""
    graph = bundle.graph(GRAPH_NAME)
    return QuantizedGraph(cpu_session(bundle.graph_file(GRAPH_NAME, "qdq")), boundary_of(graph))


def open_simulator(bundle: Bundle) -> QuantizedGraph:
    """The bundle's compiled graph on the HTP simulator."""
    target = TARGETS[bundle.manifest.targets[0].target]
    session = simulator_session(bundle.graph_file(GRAPH_NAME, "context"), target)
    return QuantizedGraph(session, boundary_of(bundle.graph(GRAPH_NAME)))


def _not_compiled(bundle: Bundle) -> str | None:
    if "context" in bundle.graph(GRAPH_NAME).files:
        return None
    return "the bundle was exported on a host without the HTP compiler and holds no compiled graph"
