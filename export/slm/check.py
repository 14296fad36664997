"""The stages of an SLM's bundle on its held-out passes: transformers -> fp32 -> QDQ on the CPU -> HTP simulator.

The draft graph is judged on trees, the prefill graph on the keys and values of a piece of text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter, ValidationError

from export.bundle.boundary import boundary_of
from export.bundle.reader import verify_files
from export.checkpoint.slm import SlmConfig
from export.engines.cpu import cpu_session
from export.engines.htp import TARGETS, simulator_session, why_unavailable
from export.errors import BundleError
from export.parity import CPU_STAGE, SIMULATOR_STAGE, CheckResult, compare, spread
from export.slm.runner import CodedGraph
from export.slm.samples import BOUNDED, FP32, PREFILL, TRANSFORMERS, PassRunner, load_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from export.bundle.manifest import GraphInfo, SlmInfo
    from export.bundle.reader import Bundle
    from export.parity import Stage
    from export.slm.samples import Outputs, SlmSamples

SAMPLES_FILE = "check/samples.safetensors"


def check_slm_bundle(bundle: Bundle, limit: int | None, progress: Callable[[str], None]) -> CheckResult:
    """Verify the hashes, then run the stages on `limit` trees spread evenly (None: all) and on the prefill piece.

    Raises:
        BundleError: the bundle holds no samples or does not describe an SLM.
    """
    problems = tuple(str(problem) for problem in verify_files(bundle))
    if problems:
        return CheckResult([], problems=problems)
    samples = load_samples(bundle.path(SAMPLES_FILE))
    indices = spread(len(samples.trees), limit)
    if not indices:
        raise BundleError(f"bundle {bundle.folder}: no samples to check; export it again, or raise the limit")
    references = rows_of(samples, indices)
    stages = reference_stages(references)
    progress(f"{CPU_STAGE}: {len(indices)} passes")
    on_cpu = run_engine(bundle, samples, indices, simulator=False)
    stages += [compare(name, on_cpu[kind], against, references[against]) for kind, name, against in _CPU]
    reason = why_unavailable() or _not_compiled(bundle)
    if reason:
        return CheckResult(stages, {SIMULATOR_STAGE: reason})
    progress(f"{SIMULATOR_STAGE}: {len(indices)} passes")
    simulated = run_engine(bundle, samples, indices, simulator=True)
    stages += [compare(name, simulated[kind], against, on_cpu[kind]) for kind, name, against in _SIMULATOR]
    return CheckResult(stages)


_DRAFT = "draft"
_CPU = ((_DRAFT, CPU_STAGE, FP32), (PREFILL, f"{PREFILL}_{CPU_STAGE}", f"{PREFILL}_{FP32}"))
_SIMULATOR = ((_DRAFT, SIMULATOR_STAGE, CPU_STAGE), (PREFILL, f"{PREFILL}_{SIMULATOR_STAGE}", f"{PREFILL}_{CPU_STAGE}"))


def reference_stages(references: dict[str, Outputs]) -> list[Stage]:
    """The stages recorded at export: the float graph against transformers under the same bounds and as it is."""
    return [compare(FP32, references[FP32], against, references[against]) for against in (BOUNDED, TRANSFORMERS)]


def run_engine(bundle: Bundle, samples: SlmSamples, indices: Sequence[int], simulator: bool) -> dict[str, Outputs]:
    """Outputs of both graphs, "draft" on the trees at `indices` and "prefill" on its piece of text."""
    slm = slm_info(bundle)
    draft = _runner(bundle, slm.draft_graph, simulator).run([samples.trees[i] for i in indices])
    return {_DRAFT: draft, PREFILL: _runner(bundle, slm.prefill_graph, simulator).run([samples.prefill])}


def rows_of(samples: SlmSamples, indices: Sequence[int]) -> dict[str, Outputs]:
    """The references' rows of some trees; what belongs to the prefill piece is left whole."""
    ends = np.cumsum([sample.tree.run for sample in samples.trees])
    rows = [row for i in indices for row in range(ends[i] - samples.trees[i].tree.run, ends[i])]
    return {
        name: outputs if name.startswith(PREFILL) else {key: array[rows] for key, array in outputs.items()}
        for name, outputs in samples.references.items()
    }


def open_graph(bundle: Bundle, name: str, simulator: bool) -> CodedGraph:
    """One of the bundle's graphs on ONNX Runtime's CPU provider, or (compiled alone) on the HTP simulator."""
    if simulator:
        target = TARGETS[bundle.manifest.targets[0].target]
        session = simulator_session(bundle.graph_file(name, "simulator_context"), target)
    else:
        session = cpu_session(bundle.graph_file(name, "qdq"))
    return CodedGraph(session, boundary_of(bundle.graph(name)))


def slm_config(bundle: Bundle) -> SlmConfig:
    """The SLM's dimensions as the manifest records them."""
    try:
        return TypeAdapter(SlmConfig).validate_python(bundle.manifest.source.config)
    except ValidationError as error:
        raise BundleError(f"manifest: source.config does not describe an SLM: {error}; export again") from error


def slm_info(bundle: Bundle) -> SlmInfo:
    """What only an SLM's manifest has."""
    if bundle.manifest.slm is None:
        raise BundleError(f"bundle {bundle.folder} is of kind {bundle.manifest.kind!r}, not an SLM's")
    return bundle.manifest.slm


def _runner(bundle: Bundle, name: str, simulator: bool) -> PassRunner:
    graph: GraphInfo = bundle.graph(name)
    scales = {tensor.name: tensor.scale for tensor in graph.outputs if tensor.scale is not None}
    return PassRunner(
        slm_config(bundle), open_graph(bundle, name, simulator), graph.rows, bundle.manifest.window, scales
    )


def _not_compiled(bundle: Bundle) -> str | None:
    if "simulator_context" in bundle.graph(slm_info(bundle).draft_graph).files:
        return None
    return "the bundle was exported on a host without the HTP compiler and holds no compiled graph"
