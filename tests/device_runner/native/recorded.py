"""Two bundles with made-up graphs, a text drafted by the Python drafter over them, and its recording for the runner."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors.numpy import save_file

from calibration.keepset import KeepSet
from export.bundle.boundary import tensor_info
from export.bundle.manifest import CalibrationInfo, GraphInfo, KeepSetInfo, Manifest, SlmInfo, SourceInfo, TableInfo
from export.bundle.writer import BundleWriter
from export.checkpoint.mtp import LayerShape, MtpConfig, RopeSpec
from export.checkpoint.slm import SlmConfig, SlmLayer
from export.engines.cpu import QuantizedGraph
from export.engines.graph_io import Boundary, BoundaryTensor
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import MtpInputs
from export.graphs.slm import SlmInputs
from export.mtp.chain import MtpChain
from export.slm.runner import CodedGraph, SlmModel, SlmTables
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.config import DecodeConfig, parse_config
from hyco_npu.decode.drafters.registry import MtpEngine, Parts, SlmEngine, build_drafter
from hyco_npu.decode.protocols import HeadUpdate, Reply
from quant.packed_table import PackedTable
from quant.packing import pack_offset
from quant.table import build_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hyco_npu.decode.tree import DraftTree

_SHA = "a" * 64
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Sizes:
    """Dimensions of both drafters; the defaults are small, and every window slides within a few rounds."""

    vocabulary: int = 300
    kept: int = 210
    chunks: tuple[int, ...] = (90, 120)
    window: int = 20
    sliding_window: int = 6
    rows: int = 12
    prefill_rows: int = 5
    backbone: int = 24
    head_heads: tuple[int, int] = (2, 1)
    head_dims: tuple[int, int] = (8, 16)
    hidden: int = 16
    layer_kinds: str = "ssfssf"
    owners: tuple[int, ...] = (0, 1, 2, 3, 1, 2)
    slm_dims: tuple[int, int] = (8, 16)
    per_layer_width: int = 4
    table_rows: int = 300
    distinct_rows: int = 300
    spread: float = 3000.0
    position_rule: str = "p"


@dataclass
class Calls:
    """What the graphs were given and gave, in the order in which they ran."""

    names: list[str] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    keep_inputs: bool = True


class RandomSession:
    """Stands for an ONNX Runtime session: codes out of a generator, the same for no two calls."""

    def __init__(self, name: str, boundary: Boundary, sizes: Sizes, calls: Calls) -> None:
        self._name, self._boundary, self._sizes, self._calls = name, boundary, sizes, calls
        self._rng = np.random.default_rng(len(name))

    def run(self, names: Sequence[str], codes: dict[str, np.ndarray]) -> list[np.ndarray]:
        call = len(self._calls.names)
        self._calls.names.append(self._name)
        results = [self._draw(tensor) for tensor in self._boundary.outputs]
        if self._calls.keep_inputs:
            self._calls.arrays |= {f"call.{call}.in.{name}": array.copy() for name, array in codes.items()}
        self._calls.arrays |= {f"call.{call}.out.{name}": a for name, a in zip(names, results, strict=True)}
        return results

    def _draw(self, tensor: BoundaryTensor) -> np.ndarray:
        if tensor.name.startswith("logits"):
            return self._rng.normal(28000, self._sizes.spread, tensor.shape).clip(0, 65535).astype(np.uint16)
        low, high = tensor.integer.qmin, tensor.integer.qmax + 1
        return self._rng.integers(low, high, tensor.shape).astype(tensor.dtype)


def ropes() -> tuple[RopeSpec, ...]:
    return (RopeSpec(_SLIDING, 10_000.0, "default", 1.0), RopeSpec(_FULL, 1_000_000.0, "proportional", 0.25))


def head_config(sizes: Sizes) -> MtpConfig:
    kinds = zip((_SLIDING, _FULL), sizes.head_dims, sizes.head_heads, strict=True)
    layers = tuple(LayerShape(kind, dim, heads) for kind, dim, heads in kinds)
    return MtpConfig(16, sizes.backbone, 32, 2, layers, ropes(), sizes.vocabulary, 1e-6, sizes.sliding_window, False)


def slm_config(sizes: Sizes) -> SlmConfig:
    dims = dict(zip("sf", sizes.slm_dims, strict=True))
    layers = tuple(
        SlmLayer(_SLIDING if kind == "s" else _FULL, dims[kind], 1, 32, owner)
        for kind, owner in zip(sizes.layer_kinds, sizes.owners, strict=True)
    )
    vocabulary = (sizes.vocabulary, sizes.vocabulary)
    return SlmConfig(
        sizes.hidden, 2, layers, ropes(), *vocabulary, sizes.per_layer_width, sizes.sliding_window, 1e-6, 30.0
    )


def _tensor(name: str, shape: tuple[int, ...], head: bool) -> BoundaryTensor:
    """Scales as calibration would give them: masks reach -100, cosines 1, caches are symmetric."""
    if name.startswith(("keys_", "values_")):
        return BoundaryTensor(name, "int16", shape, 0.00031, 0)
    if name.startswith(("past_", "new_")):
        return BoundaryTensor(name, "int8", shape, 0.02, 0)
    if name.startswith("mask_"):
        return BoundaryTensor(name, "uint16", shape, 100 / 65535, 65535)
    if name.startswith(("cos_", "sin_")):
        return BoundaryTensor(name, "uint16", shape, 2 / 65535, 32768)
    if name.startswith("logits"):
        return BoundaryTensor(name, "uint16", shape, (50 if head else 70) / 65535, 33000)
    return BoundaryTensor(name, "uint16", shape, 12 / 65535, 31000)


def _boundary(inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]], sizes: Sizes) -> Boundary:
    head = "embedding" in inputs and "hidden" in inputs
    made = []
    for name, shape in outputs.items():
        chunks = enumerate(sizes.chunks) if name == "logits" else [(None, shape[-1])]
        made += [_tensor(name if i is None else f"logits_{i}", (*shape[:-1], n), head) for i, n in chunks]
    return Boundary(tuple(_tensor(name, shape, head) for name, shape in inputs.items()), tuple(made))


def head_boundary(sizes: Sizes) -> Boundary:
    shapes = MtpInputs(head_config(sizes), sizes.window).shapes()
    outputs = {"next_hidden": (1, 1, 1, sizes.backbone), "logits": (1, 1, 1, sizes.kept)}
    return _boundary(shapes, outputs, sizes)


def slm_boundary(sizes: Sizes, prefill: bool) -> Boundary:
    """A prefill graph has no logits, and lacks the masks of a kind that no owner's layer below it needs."""
    graph = SlmInputs(slm_config(sizes), sizes.prefill_rows if prefill else sizes.rows, sizes.window)
    outputs = graph.output_shapes()
    if prefill:
        del outputs["logits"]
    return _boundary(graph.shapes(), outputs, sizes)


def keep_set(sizes: Sizes, seed: int) -> KeepSet:
    chosen = np.random.default_rng(seed).choice(sizes.vocabulary, sizes.kept, replace=False)
    return KeepSet(np.sort(chosen).astype(np.int64), sizes.vocabulary)


def packed(sizes: Sizes, bits: int, width: int, groups: int) -> PackedTable:
    rng = np.random.default_rng(width)
    limit = 1 << (bits - 1)
    codes = torch.from_numpy(rng.integers(-limit, limit, (sizes.distinct_rows, width)).astype(np.int8))
    scale = rng.uniform(0.01, 0.1, (sizes.distinct_rows, groups)).astype(np.float32)
    times = (sizes.table_rows // sizes.distinct_rows, 1)
    return PackedTable(
        np.tile(pack_offset(codes, bits).numpy(), times), np.tile(scale, times), bits, width, width**0.5 / 4
    )


@dataclass(frozen=True)
class Session:
    """A Python drafter over two written bundles, and what its graphs did so far."""

    sizes: Sizes
    config: DecodeConfig
    drafter: Any
    calls: Calls
    mtp: Path
    slm: Path


def open_session(folder: Path, sizes: Sizes, config: dict[str, Any], keep_inputs: bool = True) -> Session:
    parsed = parse_config({"name": "test", "drafter": "hybrid", **config}, "test")
    calls = Calls(keep_inputs=keep_inputs)
    mtp = write_mtp(folder / "mtp", sizes, calls)
    slm = write_slm(folder / "slm", sizes, calls)
    drafter = build_drafter(parsed, Parts(mtp, slm, Clock()))
    return Session(sizes, parsed, drafter, calls, folder / "mtp", folder / "slm")


def write_mtp(out: Path, sizes: Sizes, calls: Calls) -> MtpEngine:
    config, boundary, keep = head_config(sizes), head_boundary(sizes), keep_set(sizes, 1)
    rows = torch.randn(sizes.kept, sizes.backbone, generator=torch.Generator().manual_seed(1))
    table = build_table([(torch.from_numpy(keep.token_ids.copy()), rows)])
    with BundleWriter(out) as writer:
        keep.save(writer.path("keep_set.json"))
        table.save(writer.path("table.safetensors"))
        info = TableInfo(
            file="table.safetensors", rows=sizes.kept, width=sizes.backbone, bits=8, size_bytes=table.size_bytes
        )
        writer.finish(
            _manifest("mtp", sizes, keep, TypeAdapter(MtpConfig).dump_python(config, mode="json")).model_copy(
                update={"bits": 4, "graphs": (_graph("mtp_step", 1, boundary),), "table": info}
            )
        )
    session = RandomSession("mtp_step", boundary, sizes, calls)
    feeds = FeedBuilder(config, sizes.window, "p-1" if sizes.position_rule == "p-1" else "p")
    chain = MtpChain(feeds, keep.token_ids, lambda token: table.lookup(token).numpy())
    return MtpEngine(chain, QuantizedGraph(session, boundary), sizes.window)


def write_slm(out: Path, sizes: Sizes, calls: Calls) -> SlmEngine:
    config, keep = slm_config(sizes), keep_set(sizes, 2)
    boundaries = {"draft": slm_boundary(sizes, prefill=False), "prefill": slm_boundary(sizes, prefill=True)}
    width = len(config.layers) * sizes.per_layer_width
    tables = {
        "table": packed(sizes, 2, sizes.hidden, 1),
        "per_layer_table": packed(sizes, 4, width, len(config.layers)),
    }
    rows = {"draft": sizes.rows, "prefill": sizes.prefill_rows}
    with BundleWriter(out) as writer:
        keep.save(writer.path("keep_set.json"))
        infos = {}
        for name, table in tables.items():
            table.save(writer.path(f"{name}.safetensors"))
            shape = {"rows": table.rows, "width": table.width, "bits": table.bits, "size_bytes": table.size_bytes}
            infos[name] = TableInfo(file=f"{name}.safetensors", **shape)
        graphs = tuple(_graph(name, rows[name], boundary) for name, boundary in boundaries.items())
        writer.finish(
            _manifest("slm", sizes, keep, TypeAdapter(SlmConfig).dump_python(config, mode="json")).model_copy(
                update={"graphs": graphs, **infos, "bits": None, "position_rule": "p", "slm": _slm_info()}
            )
        )
    opened = [CodedGraph(RandomSession(name, b, sizes, calls), b) for name, b in boundaries.items()]
    model = SlmModel(
        config, SlmTables(*tables.values()), opened[0], sizes.rows, opened[1], sizes.prefill_rows, sizes.window, "int8"
    )
    return SlmEngine(model, keep.token_ids)


def _slm_info() -> SlmInfo:
    return SlmInfo(
        draft_graph="draft",
        prefill_graph="prefill",
        two_bit="int4",
        head_bits=4,
        activation_clip=True,
        weight_bytes_by_kind={},
    )


def _graph(name: str, rows: int, boundary: Boundary) -> GraphInfo:
    tensors = {"inputs": boundary.inputs, "outputs": boundary.outputs}
    described = {key: tuple(map(tensor_info, value)) for key, value in tensors.items()}
    return GraphInfo(name=name, rows=rows, files={}, weight_bytes=0, **described)


def _manifest(kind: str, sizes: Sizes, keep: KeepSet, config: dict[str, Any]) -> Manifest:
    fields: dict[str, Any] = {
        "kind": "mtp",
        "created_utc": datetime(2026, 5, 4, tzinfo=UTC),
        "tool_versions": {},
        "source": SourceInfo(origin="made up", sha256=_SHA, config=config),
        "bits": 4,
        "window": sizes.window,
        "position_rule": sizes.position_rule,
        "keep_set": KeepSetInfo(file="keep_set.json", size=keep.size, sha256=keep.sha256, vocab_size=keep.vocab_size),
        "calibration": CalibrationInfo(source="made up", sha256=_SHA),
        "seed": 0,
        "graphs": (),
    }
    return Manifest(**fields).model_copy(update={"kind": kind})


class TextRecorder:
    """Plays a text to the Python drafter and writes down what the native one is to be played."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session, self.rng = session, np.random.default_rng(seed)
        self.events: list[dict[str, Any]] = []
        self.trees: list[DraftTree] = []
        self._updates: dict[str, np.ndarray] = {}
        self._count = 0

    def begin(self, length: int) -> None:
        tokens, emitted = self._tokens(length), tuple(self._tokens(1))
        reply = Reply((), emitted, False, self._update(length + (self._count > 0)))
        self.session.drafter.begin(tokens, reply)
        self.events.append({"event": "begin", "token_ids": tokens, **self._described(reply)})

    def draft(self, max_depth: int) -> DraftTree:
        tree = self.session.drafter.draft(max_depth)
        self.trees.append(tree)
        self.events.append({"event": "draft", "max_depth": max_depth})
        return tree

    def commit(self, tree: DraftTree, *, deepest: bool = False, bonus: bool = True) -> None:
        """Accept a random path, or one to a deepest row."""
        row = int(np.argmax(tree.depths)) if deepest else int(self.rng.integers(tree.rows))
        path = tree.path(row)
        emitted = [tree.token_ids[at] for at in path] + (self._tokens(1) if bonus or not path else [])
        reply = Reply(path, tuple(emitted), False, self._update(len(emitted)))
        self.session.drafter.commit(tree, reply)
        self.events.append({"event": "commit", "accepted": list(path), **self._described(reply)})

    def save(self, path: Path) -> Path:
        recording = {
            "schema_version": 1,
            "config": self.session.config.model_dump(mode="json"),
            "events": self.events,
            "calls": self.session.calls.names,
        }
        arrays = {**self.session.calls.arrays, **self._updates}
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(contiguous, path, {"recording": json.dumps(recording)})
        return path

    def _tokens(self, count: int) -> list[int]:
        """Few different ones, so that n-grams come again."""
        return [int(token) for token in self.rng.integers(0, min(40, self.session.sizes.table_rows), count)]

    def _described(self, reply: Reply) -> dict[str, Any]:
        return {"emitted": list(reply.emitted), "update": self._count - 1}

    def _update(self, rows: int) -> HeadUpdate:
        sizes = self.session.sizes

        def floats(*shape: int) -> np.ndarray:
            return self.rng.normal(0, 3, shape).astype(np.float32)

        shapes = {
            kind: (heads, rows, dim)
            for kind, heads, dim in zip(("sliding", "full"), sizes.head_heads, sizes.head_dims, strict=True)
        }
        keys, values = ({kind: floats(*shape) for kind, shape in shapes.items()} for _ in range(2))
        update = HeadUpdate(floats(sizes.backbone), floats(sizes.backbone), keys, values)
        prefix = f"update.{self._count}."
        self._updates |= {prefix + "hidden": update.hidden, prefix + "embedding": update.embedding}
        for part, arrays in (("keys", keys), ("values", values)):
            self._updates |= {f"{prefix}{part}_{kind}": array for kind, array in arrays.items()}
        self._count += 1
        return update
