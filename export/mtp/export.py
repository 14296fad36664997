"""`hyco-npu export mtp`: from a head's checkpoint to a bundle that a phone could run.

Reads, traces, restricts, calibrates, quantises, compiles, records samples, and writes everything into one folder that
appears whole or not at all.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from pydantic import TypeAdapter

from calibration.ranges import Ranges
from export.bundle import BundleWriter
from export.bundle.boundary import tensor_info
from export.bundle.describe import source_info, tool_versions
from export.bundle.manifest import (
    CalibrationInfo,
    GraphInfo,
    KeepSetInfo,
    Manifest,
    SourceInfo,
    TableInfo,
    TargetStatus,
)
from export.checkpoint.mtp import MtpConfig
from export.engines.cpu import FloatGraph, QuantizedGraph, cpu_session
from export.engines.htp import TARGETS, CompiledGraph, compile_graph, simulator_session, why_unavailable
from export.errors import ExportError
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import MtpHead, load_mtp_head
from export.mtp.calibrate import collect_ranges, table_ranges
from export.mtp.chain import MtpChain
from export.mtp.check import GRAPH_NAME, SAMPLES_FILE, reference_stages
from export.mtp.float_graph import build_float_graph
from export.mtp.given_codes import given_codes
from export.mtp.options import MtpExportResult
from export.mtp.quantized_graph import HIDDEN_TIE, QuantizedStep, quantize_step
from export.mtp.reference import FakeQuantizedHead, TransformersHead
from export.mtp.samples import record_samples, run_samples, save_samples, stack_outputs
from export.mtp.sources import Evidence, Sources, gather_evidence, open_sources, table_and_embed, vocabulary_of
from export.observe import save_graph, save_watched
from export.parity import CPU_STAGE, SIMULATOR_COSINE, SIMULATOR_STAGE, Stage, compare
from export.sources import copy_tokenizer, counted_keep_set, given_keep_set, keep_set_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from calibration.keepset import KeepSet
    from export.mtp.options import MtpExportOptions
    from export.mtp.samples import Samples
    from quant.table import EmbeddingTable

_PARITY = 1e-4
"""Largest difference from transformers, in units of the largest value where that exceeds 1."""


@dataclass(frozen=True)
class _Inputs:
    """What was read and chosen before anything is made."""

    sources: Sources
    evidence: Evidence
    keep: KeepSet
    keep_source: str


@dataclass(frozen=True)
class _Made:
    """Intermediate results that the manifest describes."""

    keep: KeepSet
    keep_source: str
    table: EmbeddingTable | None
    ranges: Ranges
    step: QuantizedStep
    samples: Samples
    compiled: CompiledGraph | None
    simulated: Stage | None


def export_mtp(options: MtpExportOptions, progress: Callable[[str], None]) -> MtpExportResult:
    """Export as `options` say; the bundle appears at `options.out` when all of it is there.

    Raises:
        UsageError: options that do not fit, an `out` that exists (without force).
        CheckpointError, CalibrationError, PassError, CompileError: naming file, tensor, value or node.
    """
    with BundleWriter(options.out, force=options.force) as writer:
        progress("reading checkpoints")
        sources = open_sources(options)
        vocabulary = vocabulary_of(sources)
        keep_set = given_keep_set(options.keep_set, vocabulary)
        if keep_set is None:
            keep_set_size(options.keep_set, vocabulary)  # a wrong number is refused before the long work
        evidence = gather_evidence(sources, options, progress)
        if keep_set is not None:
            kept, origin = keep_set, f"file {Path(str(options.keep_set)).name}"
        else:
            kept, origin = counted_keep_set(options.keep_set, vocabulary, evidence.sequences, options.default_prompts)
        made = _make(_Inputs(sources, evidence, kept, origin), options, writer.path, progress)
        copy_tokenizer(sources.tokenizer_folder, writer.path)
        progress("hashing and writing the bundle")
        bundle = writer.finish(_manifest(sources, made, options))
    return _result(bundle.folder, made, evidence, options)


def _make(
    inputs: _Inputs, options: MtpExportOptions, path: Callable[[str], Path], progress: Callable[[str], None]
) -> _Made:
    sources, evidence, keep = inputs.sources, inputs.evidence, inputs.keep
    keep.save(path("keep_set.json"))
    progress("building the embedding table")
    rows, embed = table_and_embed(sources, keep, options.seed)
    # where no table is written, its rows still feed the chains that calibrate and check
    table = rows if options.table else None
    if table is not None:
        table.save(path("tables/embedding.safetensors"))
    config = sources.head.config
    feeds = FeedBuilder(config, options.window, options.position_rule)
    chain = MtpChain(feeds, keep.token_ids, embed)
    head = load_mtp_head(config, sources.head.state_dict())
    given = given_codes(sources.head_source.folder, head, keep.token_ids, options.bits)
    progress("tracing and cutting the graph")
    model = build_float_graph(head, keep.token_ids, options.window)
    ranges, samples = _observe(model, chain, evidence, rows, progress)
    ranges.save(path("ranges.json"))
    progress("quantising weights and activations")
    step = quantize_step(model, ranges.bounds, options.bits, options.kv_bits, given)
    qdq = path(f"graphs/{GRAPH_NAME}.qdq.onnx")
    ir.save(step.model, qdq)
    progress("running the references on held-out samples")
    _add_references(samples, sources, head, step, chain)
    save_samples(samples, path(SAMPLES_FILE))
    compiled = simulated = None
    if why_unavailable() is None:
        target = TARGETS[options.target]
        progress(f"compiling for {target.name}")
        compiled = compile_graph(qdq, path(f"graphs/{GRAPH_NAME}.{target.name}.onnx"), target)
        progress("one step on the HTP simulator")
        on_cpu = QuantizedGraph(cpu_session(qdq), step.boundary)
        on_npu = QuantizedGraph(simulator_session(compiled.context, target), step.boundary)
        simulated = _simulate_once(on_cpu, on_npu, samples, feeds)
    return _Made(keep, inputs.keep_source, table, ranges, step, samples, compiled, simulated)


def _simulate_once(cpu: QuantizedGraph, simulator: QuantizedGraph, samples: Samples, feeds: FeedBuilder) -> Stage:
    on_cpu = run_samples(samples, feeds, cpu, [0])
    return compare(SIMULATOR_STAGE, run_samples(samples, feeds, simulator, [0]).named, CPU_STAGE, on_cpu.named)


def _observe(
    model: ir.Model,
    chain: MtpChain,
    evidence: Evidence,
    table: EmbeddingTable | None,
    progress: Callable[[str], None],
) -> tuple[Ranges, Samples]:
    """Ranges that hold what `table` can reach, and samples."""
    with TemporaryDirectory() as scratch:
        folder, ranges = Path(scratch), evidence.ranges
        owners: Mapping[str, str] = {}
        if ranges is None:
            progress("calibrating activations")
            watched = save_watched(model, folder / "observed.onnx", [HIDDEN_TIE])
            ranges = Ranges(collect_ranges(watched, chain, evidence.calibration), evidence.source)
            owners = watched.owners
        if table is not None:
            ranges = ranges.merge(Ranges(table_ranges(table), "table"))
        save_graph(model, folder / "float.onnx")
        samples = record_samples(chain, evidence.held_out, FloatGraph(folder / "float.onnx"))
    return ranges.tied(owners), samples


def _add_references(samples: Samples, sources: Sources, head: MtpHead, step: QuantizedStep, chain: MtpChain) -> None:
    everything = range(len(samples))
    builder, keep = chain.feeds, np.array(chain.token_ids)
    offset = int(builder.position_rule == "p-1")
    fake = FakeQuantizedHead(head, step.weights, keep, builder.window)
    samples.references["fake_quant"] = run_samples(samples, builder, fake, everything)
    del fake
    reference = TransformersHead(sources.head_source.folder, keep)
    results = []
    for index in everything:
        reference.position = samples.states[int(samples.state_of[index])].position - offset
        results.append(reference.run(samples.feed(builder, index)))
    samples.references["transformers"] = stack_outputs(results)
    _require_parity(samples)


def _require_parity(samples: Samples) -> None:
    """Raise ExportError where the float graph is not the head that transformers runs."""
    ours, wanted = samples.references["fp32"], samples.references["transformers"]
    for what, found, reference in (("logits", ours.logits, wanted.logits), ("hidden", ours.hidden, wanted.hidden)):
        error, limit = np.abs(found - reference).max(), _PARITY * max(1.0, np.abs(reference).max())
        if not error <= limit:
            raise ExportError(
                f"the float graph's {what} differ from transformers' by {error:.3g}, more than {limit:.3g}: the graph "
                "does not compute this checkpoint's head; please report it with the checkpoint's config.json"
            )


def _manifest(sources: Sources, made: _Made, options: MtpExportOptions) -> Manifest:
    target, compiled = TARGETS[options.target], made.compiled
    stages = reference_stages(made.samples, range(len(made.samples)))
    stages += [made.simulated] if made.simulated else []
    return Manifest(
        kind="mtp",
        created_utc=datetime.now(UTC),
        tool_versions=tool_versions(),
        source=source_info(
            sources.head_source,
            sources.head.reader,
            TypeAdapter(MtpConfig).dump_python(sources.head.config, mode="json"),
        ),
        verifier=_verifier_source(sources),
        bits=options.bits,  # type: ignore[arg-type]
        window=options.window,
        position_rule=options.position_rule,
        keep_set=KeepSetInfo(
            file="keep_set.json", size=made.keep.size, sha256=made.keep.sha256, vocab_size=made.keep.vocab_size
        ),
        calibration=CalibrationInfo(source=made.ranges.source, sha256=made.ranges.sha256),
        seed=options.seed,
        graphs=(_graph_info(made, options),),
        table=_table_info(made.table),
        parity={f"{s.name}.{key}": getattr(s, key) for s in stages for key in ("cosine", "sqnr_db", "max_abs_error")},
        targets=(
            TargetStatus(
                target=target.name,
                soc_model=target.soc_model,
                htp_arch=f"v{target.htp_arch}",
                qnn_version=compiled.qnn_version if compiled else None,
                compiled=compiled is not None,
                simulated=made.simulated is not None,
            ),
        ),
    )


def _graph_info(made: _Made, options: MtpExportOptions) -> GraphInfo:
    files = {"qdq": f"graphs/{GRAPH_NAME}.qdq.onnx"}
    if made.compiled is not None:
        files |= {"context": f"graphs/{made.compiled.context.name}", "binary": f"graphs/{made.compiled.binary.name}"}
    return GraphInfo(
        name=GRAPH_NAME,
        rows=1,
        files=files,
        inputs=tuple(map(tensor_info, made.step.boundary.inputs)),
        outputs=tuple(map(tensor_info, made.step.boundary.outputs)),
        weight_bytes=sum(w.codes.numel() * options.bits // 8 + w.scale.numel() * 4 for w in made.step.weights.values()),
        nodes_on_npu=made.compiled.nodes_on_npu if made.compiled else None,
        nodes_off_npu=made.compiled.nodes_off_npu if made.compiled else None,
    )


def _table_info(table: EmbeddingTable | None) -> TableInfo | None:
    if table is None:
        return None
    rows, width = table.codes.shape
    file = "tables/embedding.safetensors"
    return TableInfo(file=file, rows=rows, width=width, bits=8, size_bytes=table.size_bytes)


def _verifier_source(sources: Sources) -> SourceInfo | None:
    if sources.verifier_source is None or sources.embeddings is None:
        return None
    dimensions = {"hidden_size": sources.embeddings.hidden_size, "vocab_size": sources.embeddings.vocab_size}
    return source_info(sources.verifier_source, sources.embeddings.reader, dict(dimensions))


def _result(folder: Path, made: _Made, evidence: Evidence, options: MtpExportOptions) -> MtpExportResult:
    compiled = made.compiled
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    warnings = []
    if evidence.source.startswith("synthetic"):
        why = evidence.why_synthetic
        warnings.append(f"activation ranges are synthetic ({why}): for size and speed work, not for deployment")
    if "no tokenizer" in made.keep_source:
        warnings.append(f"keep set: {made.keep_source}")
    if not evidence.sequences:
        warnings.append("checks ran on synthetic states: their figures say nothing about drafting")
    if made.table is None:
        warnings.append("no embedding table was written: a phone cannot draft with this bundle alone")
    if made.simulated is not None and made.simulated.cosine < SIMULATOR_COSINE:
        warnings.append(f"the simulator's cosine to the CPU is {made.simulated.cosine:.6f} in one step: run the check")
    if compiled is None:
        warnings.append(f"not compiled: {why_unavailable()}")
    fp32 = reference_stages(made.samples, range(len(made.samples)))[0]
    graphs = folder / "graphs"
    return MtpExportResult(
        bundle=str(folder),
        target=options.target,
        bits=options.bits,
        kv_bits=options.kv_bits,
        window=options.window,
        keep_set_size=made.keep.size,
        keep_set_source=made.keep_source,
        calibration=made.ranges.source,
        graph_bytes=(graphs / compiled.binary.name).stat().st_size if compiled else None,
        qdq_bytes=(graphs / f"{GRAPH_NAME}.qdq.onnx").stat().st_size,
        lut_bytes=made.table.codes.nbytes if made.table is not None else 0,
        compile_s=compiled.compile_s if compiled else None,
        peak_rss_bytes=max(own_peak, compiled.peak_rss_bytes if compiled else 0),
        nodes_on_npu=compiled.nodes_on_npu if compiled else None,
        nodes_off_npu=compiled.nodes_off_npu if compiled else None,
        qnn_version=compiled.qnn_version if compiled else None,
        parity_max_abs_error=fp32.max_abs_error,
        measured_on_device="not measured",
        warnings=warnings,
    )
