"""`hyco-npu export slm`: from a QAT checkpoint to a bundle of two graphs that share their weights.

Reads, traces, calibrates, quantises, records samples, compiles each graph alone and runs it on the simulator, compiles
both into one binary, and writes everything into one folder that appears whole or not at all.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import numpy as np
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
    SlmInfo,
    TableInfo,
    TargetStatus,
)
from export.checkpoint.slm import SlmConfig
from export.checkpoint.slm_tables import per_layer_table, token_table
from export.engines.cpu import FloatGraph, cpu_session
from export.engines.htp import TARGETS, compile_graph, compile_shared, simulator_session, why_unavailable
from export.errors import CompileError, ExportError
from export.observe import save_graph, save_watched
from export.parity import CPU_STAGE, SIMULATOR_COSINE, SIMULATOR_STAGE, compare
from export.slm.calibrate import cache_ranges, collect_ranges
from export.slm.check import SAMPLES_FILE, reference_stages
from export.slm.float_graph import build_graph, keep_caches_only
from export.slm.options import PAPER_GRAPH_BYTES, SlmExportOptions, SlmExportResult
from export.slm.quantized_graph import quantize_slm
from export.slm.record import Recorder
from export.slm.runner import CodedGraph, SlmTables
from export.slm.samples import BOUNDED, FP32, PREFILL, PassRunner, save_samples
from export.slm.save import save_sharing_weights
from export.slm.sources import gather_texts, open_slm_sources
from export.slm.weights import HEAD_KIND, coded_weights, kind_of_weight
from export.sources import copy_tokenizer, counted_keep_set, given_keep_set, keep_set_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from calibration.keepset import KeepSet
    from export.engines.htp import CompiledGraph
    from export.parity import Stage
    from export.passes.store_codes import CodedWeight
    from export.slm.quantized_graph import QuantizedSlm
    from export.slm.samples import SlmSamples
    from export.slm.sources import SlmSources, Texts
    from quant.packed_table import PackedTable

DRAFT, PREFILL_GRAPH = "slm_draft", "slm_prefill"
_TABLE_FILES = ("tables/embedding.safetensors", "tables/per_layer.safetensors")
_WEIGHTS_FILE = "graphs/slm.weights"
_PARITY = 1e-4
"""Largest difference from transformers, in units of the largest value where that exceeds 1."""


@dataclass(frozen=True)
class _Graphs:
    """Both graphs, quantised, with the names of the weights that each reads."""

    draft: QuantizedSlm
    prefill: QuantizedSlm
    weights: dict[str, CodedWeight]

    def of(self, name: str) -> QuantizedSlm:
        return self.draft if name == DRAFT else self.prefill


@dataclass(frozen=True)
class _Compiled:
    """Each graph alone (by name), and both in one binary."""

    alone: dict[str, CompiledGraph]
    shared: dict[str, CompiledGraph]
    stages: list[Stage]


@dataclass(frozen=True)
class _Made:
    """Everything that manifest and result describe."""

    keep: KeepSet
    keep_source: str
    texts: Texts
    ranges: Ranges
    graphs: _Graphs
    samples: SlmSamples
    compiled: _Compiled | None


def export_slm(options: SlmExportOptions, progress: Callable[[str], None]) -> SlmExportResult:
    """Export as `options` say; the bundle appears at `options.out` when all of it is there.

    Raises:
        UsageError: options that do not fit, an `out` that exists (without force).
        CheckpointError, CalibrationError, PassError, ExportError, CompileError: naming file, tensor, value or node.
    """
    with BundleWriter(options.out, force=options.force) as writer:
        progress("reading the checkpoint")
        sources = open_slm_sources(options)
        keep_set = given_keep_set(options.keep_set, sources.vocabulary)
        if keep_set is None:
            keep_set_size(options.keep_set, sources.vocabulary)  # a wrong number is refused before the long work
        texts = gather_texts(sources, options, progress)
        if keep_set is not None:
            kept, origin = keep_set, f"file {Path(str(options.keep_set)).name}"
        else:
            counted = texts.calibration if texts.why_synthetic is None else []
            kept, origin = counted_keep_set(options.keep_set, sources.vocabulary, counted, options.default_prompts)
        kept.save(writer.path("keep_set.json"))
        tables = SlmTables(token_table(sources.checkpoint), per_layer_table(sources.checkpoint))
        graphs, ranges, samples = _quantize(sources, texts, kept, tables, options, writer.path, progress)
        if options.table:
            progress("writing the tables")
            for table, file in zip((tables.tokens, tables.per_layer), _TABLE_FILES, strict=True):
                table.save(writer.path(file))
        compiled = None
        if why_unavailable() is None:
            compiled = _compile(graphs, samples, sources.checkpoint.config, options, writer.path, progress)
        copy_tokenizer(sources.tokenizer_folder, writer.path)
        made = _Made(kept, origin, texts, ranges, graphs, samples, compiled)
        progress("hashing and writing the bundle")
        bundle = writer.finish(_manifest(sources, tables, made, options))
    return _result(bundle.folder, tables, made, options)


def _quantize(
    sources: SlmSources,
    texts: Texts,
    kept: KeepSet,
    tables: SlmTables,
    options: SlmExportOptions,
    path: Callable[[str], Path],
    progress: Callable[[str], None],
) -> tuple[_Graphs, Ranges, SlmSamples]:
    checkpoint, keep = sources.checkpoint, np.asarray(kept.token_ids)
    config, window = checkpoint.config, options.window
    weights = coded_weights(checkpoint, keep, options.two_bit, options.head_bits)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        progress("tracing the graphs and storing the checkpoint's codes")
        draft = build_graph(checkpoint, weights, len(keep), options.rows, window, options.activation_clip)
        prefill = build_graph(checkpoint, weights, len(keep), options.prefill_rows, window, options.activation_clip)
        keep_caches_only(prefill)
        ranges = texts.ranges
        if ranges is None:
            progress(f"calibrating activations on {len(texts.calibration)} texts")
            watched = save_watched(draft, folder / "observed.onnx")
            found = collect_ranges(watched, config, tables, texts.calibration, keep, options.rows, window)
            given = cache_ranges(checkpoint, watched.owners)
            chosen = {name: bounds for name, bounds in found.items() if name not in given}
            ranges = Ranges(chosen, texts.source).tied(watched.owners)
            for file in folder.iterdir():
                file.unlink()
        ranges.save(path("ranges.json"))
        progress("the float graphs on held-out texts")
        save_graph(draft, folder / "draft.onnx")
        save_graph(prefill, folder / "prefill.onnx")
        recorder = Recorder(checkpoint, tables, keep, options)
        recorder.run_floats(FloatGraph(folder / "draft.onnx"), FloatGraph(folder / "prefill.onnx"), texts.held_out)
    progress("transformers on held-out texts")
    recorder.run_transformers()
    _require_parity(recorder.references)
    progress("quantising activations")
    graphs = _Graphs(
        quantize_slm(draft, ranges.bounds, checkpoint), quantize_slm(prefill, ranges.bounds, checkpoint), weights
    )
    save_sharing_weights(
        {path(_qdq_file(DRAFT)): graphs.draft.model, path(_qdq_file(PREFILL_GRAPH)): graphs.prefill.model},
        path(_WEIGHTS_FILE).name,
    )
    progress("keys and values in 8 bits, on the CPU")
    prefill_graph = CodedGraph(cpu_session(path(_qdq_file(PREFILL_GRAPH))), graphs.prefill.boundary)
    samples = recorder.samples(prefill_graph)
    save_samples(samples, path(SAMPLES_FILE))
    return graphs, ranges, samples


def _require_parity(references: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Raise ExportError where the float graph is not the model that transformers runs."""
    ours, wanted = references[FP32]["logits"], references[BOUNDED]["logits"]
    error, limit = np.abs(ours - wanted).max(), _PARITY * max(1.0, np.abs(wanted).max())
    if not error <= limit:
        raise ExportError(
            f"the float graph's logits differ from transformers' by {error:.3g}, more than {limit:.3g}: the graph does "
            "not compute this checkpoint's model; please report it with the checkpoint's config.json"
        )


def _compile(
    graphs: _Graphs,
    samples: SlmSamples,
    config: SlmConfig,
    options: SlmExportOptions,
    path: Callable[[str], Path],
    progress: Callable[[str], None],
) -> _Compiled:
    target = TARGETS[options.target]
    alone, stages = {}, []
    rows = {DRAFT: options.rows, PREFILL_GRAPH: options.prefill_rows}
    for name, prefix, passes in ((DRAFT, "", samples.trees[:1]), (PREFILL_GRAPH, f"{PREFILL}_", [samples.prefill])):
        progress(f"compiling {name} alone for {target.name}, then one pass on the HTP simulator")
        qdq, boundary = path(_qdq_file(name)), graphs.of(name).boundary
        two_bit = _two_bit_names(graphs, name)
        alone[name] = compile_graph(qdq, path(f"check/{name}.{target.name}.onnx"), target, two_bit=bool(two_bit))
        _require_two_bits(two_bit, alone[name])
        scales = {tensor.name: tensor.scale for tensor in boundary.outputs}
        outputs = [
            PassRunner(config, CodedGraph(session, boundary), rows[name], options.window, scales).run(passes)
            for session in (cpu_session(qdq), simulator_session(alone[name].context, target))
        ]
        stages.append(compare(prefix + SIMULATOR_STAGE, outputs[1], prefix + CPU_STAGE, outputs[0]))
    progress(f"compiling both graphs into one binary for {target.name}")
    jobs = {path(_qdq_file(name)): path(f"graphs/{name}.{target.name}.onnx") for name in (DRAFT, PREFILL_GRAPH)}
    two_bit = _two_bit_names(graphs, DRAFT)
    shared = compile_shared(jobs, target, two_bit=bool(two_bit))
    _require_two_bits(two_bit, shared[0])
    return _Compiled(alone, dict(zip((DRAFT, PREFILL_GRAPH), shared, strict=True)), stages)


def _two_bit_names(graphs: _Graphs, name: str) -> set[str]:
    """Weights of a graph that are to be stored in 2 bits when it is compiled."""
    there = graphs.of(name).model.graph.initializers
    return {f"{n}.codes" for n, w in graphs.weights.items() if w.form == "native" and f"{n}.codes" in there}


def _require_two_bits(wanted: set[str], compiled: CompiledGraph) -> None:
    missing = sorted(wanted - compiled.two_bit_weights)
    if missing:
        raise CompileError(
            f"{compiled.binary.name}: {len(missing)} of {len(wanted)} weights were not stored in 2 bits, the first is "
            f"{missing[0]!r}; use --two-bit int4"
        )


def _qdq_file(name: str) -> str:
    return f"graphs/{name}.qdq.onnx"


def _manifest(sources: SlmSources, tables: SlmTables, made: _Made, options: SlmExportOptions) -> Manifest:
    target, compiled, checkpoint = TARGETS[options.target], made.compiled, sources.checkpoint
    stages = [*reference_stages(made.samples.references), *(compiled.stages if compiled else [])]
    config = TypeAdapter(SlmConfig).dump_python(checkpoint.config, mode="json")
    token_file, per_layer_file = (
        _table_info(table, file) if options.table else None
        for table, file in zip((tables.tokens, tables.per_layer), _TABLE_FILES, strict=True)
    )
    return Manifest(
        kind="slm",
        created_utc=datetime.now(UTC),
        tool_versions=tool_versions(),
        source=source_info(sources.source, checkpoint.reader, config),
        bits=None,
        window=options.window,
        position_rule="p",
        keep_set=KeepSetInfo(
            file="keep_set.json", size=made.keep.size, sha256=made.keep.sha256, vocab_size=made.keep.vocab_size
        ),
        calibration=CalibrationInfo(source=made.ranges.source, sha256=made.ranges.sha256),
        seed=options.seed,
        graphs=(
            _graph_info(DRAFT, options.rows, made),
            _graph_info(PREFILL_GRAPH, options.prefill_rows, made),
        ),
        table=token_file,
        per_layer_table=per_layer_file,
        slm=SlmInfo(
            draft_graph=DRAFT,
            prefill_graph=PREFILL_GRAPH,
            two_bit=options.two_bit,
            head_bits=_head_bits(made.graphs.weights),
            activation_clip=options.activation_clip,
            weight_bytes_by_kind=_weight_bytes(made.graphs.draft, made.graphs.weights),
        ),
        parity={
            f"{s.name}-{s.reference}.{key}": getattr(s, key)
            for s in stages
            for key in ("cosine", "sqnr_db", "max_abs_error")
        },
        targets=(
            TargetStatus(
                target=target.name,
                soc_model=target.soc_model,
                htp_arch=f"v{target.htp_arch}",
                qnn_version=compiled.shared[DRAFT].qnn_version if compiled else None,
                compiled=compiled is not None,
                simulated=compiled is not None,
            ),
        ),
    )


def _graph_info(name: str, rows: int, made: _Made) -> GraphInfo:
    files = {"qdq": _qdq_file(name), "weights": _WEIGHTS_FILE}
    shared = None
    if made.compiled is not None:
        alone, shared = made.compiled.alone[name], made.compiled.shared[name]
        files |= {
            "context": f"graphs/{shared.context.name}",
            "binary": f"graphs/{shared.binary.name}",
            "simulator_context": f"check/{alone.context.name}",
            "simulator_binary": f"check/{alone.binary.name}",
        }
    quantized = made.graphs.of(name)
    return GraphInfo(
        name=name,
        rows=rows,
        files=files,
        inputs=tuple(map(tensor_info, quantized.boundary.inputs)),
        outputs=tuple(map(tensor_info, quantized.boundary.outputs)),
        weight_bytes=sum(_weight_bytes(quantized, made.graphs.weights).values()),
        nodes_on_npu=shared.nodes_on_npu if shared else None,
        nodes_off_npu=shared.nodes_off_npu if shared else None,
    )


def _weight_bytes(quantized: QuantizedSlm, weights: Mapping[str, CodedWeight]) -> dict[str, int]:
    """Bytes of codes and scales in a graph by kind; "projection" is what was quantised here."""
    stored = {name for name in weights if f"{name}.codes" in quantized.model.graph.initializers}
    kinds = {"attention": 0, "mlp": 0, "per_layer": 0, HEAD_KIND: 0, "projection": 0}
    for name in stored:
        kinds[kind_of_weight(name)] += weights[name].stored_bytes
    kinds["projection"] = sum(w.codes.numel() + 4 * w.scale.numel() for w in quantized.weights.values())
    return kinds


def _head_bits(weights: Mapping[str, CodedWeight]) -> Literal[2, 4, 8]:
    head = next(weight for name, weight in weights.items() if kind_of_weight(name) == HEAD_KIND)
    return head.stored_bits


def _table_info(table: PackedTable, file: str) -> TableInfo:
    return TableInfo(file=file, rows=table.rows, width=table.width, bits=table.bits, size_bytes=table.size_bytes)


def _result(folder: Path, tables: SlmTables, made: _Made, options: SlmExportOptions) -> SlmExportResult:
    compiled = made.compiled
    shared = compiled.shared[DRAFT] if compiled else None
    peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]
    peaks += [one.peak_rss_bytes for one in (*compiled.alone.values(), shared)] if compiled and shared else []
    bounded, rounded = reference_stages(made.samples.references)
    assert rounded.top1_agreement is not None
    graphs, check = folder / "graphs", folder / "check"
    by_kind = _weight_bytes(made.graphs.draft, made.graphs.weights)
    return SlmExportResult(
        bundle=str(folder),
        target=options.target,
        rows=options.rows,
        prefill_rows=options.prefill_rows,
        window=options.window,
        two_bit=options.two_bit,
        head_bits=_head_bits(made.graphs.weights),
        activation_clip=options.activation_clip,
        keep_set_size=made.keep.size,
        keep_set_source=made.keep_source,
        keep_set_sha256=made.keep.sha256,
        calibration=made.ranges.source,
        graph_bytes=(graphs / shared.binary.name).stat().st_size if shared else None,
        draft_alone_bytes=(check / compiled.alone[DRAFT].binary.name).stat().st_size if compiled else None,
        prefill_alone_bytes=(check / compiled.alone[PREFILL_GRAPH].binary.name).stat().st_size if compiled else None,
        weight_bytes=sum(by_kind.values()),
        weight_bytes_by_kind=by_kind,
        paper_graph_bytes=PAPER_GRAPH_BYTES,
        qdq_bytes=sum(file.stat().st_size for file in (*graphs.glob("*.qdq.onnx"), folder / _WEIGHTS_FILE)),
        lut_bytes=tables.tokens.size_bytes if options.table else 0,
        per_layer_lut_bytes=tables.per_layer.size_bytes if options.table else 0,
        compile_s=shared.compile_s if shared else None,
        draft_compile_s=compiled.alone[DRAFT].compile_s if compiled else None,
        prefill_compile_s=compiled.alone[PREFILL_GRAPH].compile_s if compiled else None,
        peak_rss_bytes=max(peaks),
        nodes_on_npu=shared.nodes_on_npu if shared else None,
        nodes_off_npu=shared.nodes_off_npu if shared else None,
        qnn_version=shared.qnn_version if shared else None,
        parity_max_abs_error=bounded.max_abs_error,
        parity_top1_with_rounding=rounded.top1_agreement,
        measured_on_device="not measured",
        warnings=_warnings(made, options),
    )


def _warnings(made: _Made, options: SlmExportOptions) -> list[str]:
    warnings = []
    if made.texts.why_synthetic is not None:
        why = made.texts.why_synthetic
        warnings.append(f"activation ranges and checks are of random tokens ({why}): for size and speed work only")
    if made.texts.why_no_answers is not None:
        warnings.append(
            f"prompts were used without answers, because the verifier cannot run: {made.texts.why_no_answers}"
        )
    if "no tokenizer" in made.keep_source:
        warnings.append(f"keep set: {made.keep_source}")
    if not options.table:
        warnings.append("no embedding tables were written: a phone cannot draft with this bundle alone")
    if not options.activation_clip:
        warnings.append("activations are not clipped, as the weights were trained to expect: acceptance may suffer")
    if made.compiled is None:
        return [*warnings, f"not compiled: {why_unavailable()}"]
    low = [stage for stage in made.compiled.stages if stage.cosine < SIMULATOR_COSINE]
    return warnings + [f"{s.name}: the cosine to the CPU is {s.cosine:.6f} in one pass: run the check" for s in low]
