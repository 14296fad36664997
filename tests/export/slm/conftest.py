"""Tiny checkpoints and their graphs, made once; and one export of the family's SLM in each form."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from export.checkpoint.slm import SlmCheckpoint, read_slm_checkpoint
from export.checkpoint.slm_tables import per_layer_table, token_table
from export.engines.cpu import FloatGraph, cpu_session
from export.graphs.trace import trace_module
from export.observe import save_graph, save_watched
from export.slm import float_graph, weights
from export.slm.calibrate import collect_ranges
from export.slm.float_graph import build_graph, keep_caches_only
from export.slm.quantized_graph import quantize_slm
from export.slm.reference import TransformersSlm
from export.slm.runner import CodedGraph, SlmModel, SlmTables
from export.slm.save import save_sharing_weights
from export.slm.weights import coded_weights

from .builders import KEEP, MAX_COLUMNS, text, write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from export.activation_params import Range
    from export.engines.graph_io import Boundary
    from export.slm.weights import TwoBit

ROWS, PREFILL_ROWS, WINDOW = 8, 5, 32


@pytest.fixture(scope="session", autouse=True)
def _small_chunks_and_traces_made_once() -> Iterator[None]:
    """Tracing takes seconds; equal modules of equal shapes have one trace, of which every caller gets a copy."""
    traces: dict[str, bytes] = {}
    trace = trace_module

    def remembered(module: Any, shapes: Mapping[str, Any], names: Sequence[str]) -> ir.Model:
        scales = [getattr(part, "scales", None) for part in module.modules()]
        digest = hashlib.sha256(repr((scales, dict(shapes), list(names))).encode())
        for tensor in module.state_dict().values():
            digest.update(tensor.contiguous().numpy().tobytes())
        key = digest.hexdigest()
        if key not in traces:
            traces[key] = ir.to_proto(trace(module, shapes, names)).SerializeToString()
        return ir.from_proto(onnx.load_from_string(traces[key]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(float_graph, "trace_module", remembered)
        patch.setattr(float_graph, "HEAD_COLUMNS", MAX_COLUMNS)
        patch.setattr(weights, "HEAD_COLUMNS", MAX_COLUMNS)
        yield


@dataclass(frozen=True)
class Quantized:
    """Both QDQ graphs on disk with their boundaries."""

    draft: Path
    prefill: Path
    draft_boundary: Boundary
    prefill_boundary: Boundary

    def model(self, tiny: Tiny) -> SlmModel:
        """Both on the CPU, caches in 8 bits."""
        draft = CodedGraph(cpu_session(self.draft), self.draft_boundary)
        prefill = CodedGraph(cpu_session(self.prefill), self.prefill_boundary)
        config = tiny.checkpoint.config
        return SlmModel(config, tiny.tables, draft, ROWS, prefill, PREFILL_ROWS, WINDOW, "int8")


@dataclass(frozen=True)
class Tiny:
    """A checkpoint of the released form (nested, scales by layer, keys of sharing layers) and its reference."""

    folder: Path
    checkpoint: SlmCheckpoint
    tables: SlmTables
    reference: TransformersSlm

    def build(self, two_bit: TwoBit, prefill: bool = False, clip: bool = True, head_bits: int | None = None) -> Any:
        """A fresh float graph."""
        codes = coded_weights(self.checkpoint, KEEP, two_bit, head_bits)
        rows = PREFILL_ROWS if prefill else ROWS
        graph = build_graph(self.checkpoint, codes, len(KEEP), rows, WINDOW, clip)
        return keep_caches_only(graph) if prefill else graph


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = write_tiny(tmp_path_factory.mktemp("slm") / "e2b", nested=True, grouped=True, shared=True)
    checkpoint = read_slm_checkpoint(folder)
    tables = SlmTables(token_table(checkpoint), per_layer_table(checkpoint))
    return Tiny(folder, checkpoint, tables, TransformersSlm(checkpoint))


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The other layout: the language model alone, one scale a row, nothing in sharing layers."""
    return write_tiny(tmp_path_factory.mktemp("slm") / "plain_e2b", nested=False, grouped=False, shared=False)


@pytest.fixture(scope="session")
def float_model(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SlmModel]:
    """clip -> both float graphs on the CPU; without clips, the draft graph fills the cache too."""
    made: dict[bool, SlmModel] = {}

    def open_model(clip: bool = True) -> SlmModel:
        if clip not in made:
            folder = tmp_path_factory.mktemp("float")
            save_graph(tiny.build("int4", clip=clip), folder / "draft.onnx")
            draft = prefill = FloatGraph(folder / "draft.onnx")
            if clip:
                save_graph(tiny.build("int4", prefill=True), folder / "prefill.onnx")
                prefill = FloatGraph(folder / "prefill.onnx")
            rows = PREFILL_ROWS if clip else ROWS
            config = tiny.checkpoint.config
            made[clip] = SlmModel(config, tiny.tables, draft, ROWS, prefill, rows, WINDOW, "float32")
        return made[clip]

    return open_model


@pytest.fixture(scope="session")
def ranges(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Range]:
    path = tmp_path_factory.mktemp("observed") / "observed.onnx"
    watched = save_watched(tiny.build("int4"), path)
    texts = [text(length, seed=length) for length in (*range(20, 33), 9)]
    return collect_ranges(watched, tiny.checkpoint.config, tiny.tables, texts, KEEP, ROWS, WINDOW)


@pytest.fixture(scope="session")
def quantized(
    tiny: Tiny, ranges: dict[str, Range], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[TwoBit], Quantized]:
    """How 2-bit codes are stored -> the quantised graphs."""
    made: dict[str, Quantized] = {}

    def make(two_bit: TwoBit) -> Quantized:
        if two_bit not in made:
            folder = tmp_path_factory.mktemp(two_bit)
            both = [quantize_slm(tiny.build(two_bit, prefill), ranges, tiny.checkpoint) for prefill in (False, True)]
            draft, prefill = folder / "draft.qdq.onnx", folder / "prefill.qdq.onnx"
            save_sharing_weights({draft: both[0].model, prefill: both[1].model}, "slm.weights")
            made[two_bit] = Quantized(draft, prefill, both[0].boundary, both[1].boundary)
        return made[two_bit]

    return make


def largest(array: np.ndarray) -> float:
    """The largest magnitude."""
    return float(np.abs(array).max())
