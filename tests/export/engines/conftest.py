"""The tiny head quantised once for 4 and once for 8 bits, and compiled once for 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import pytest

from export.engines.cpu import FloatGraph
from export.engines.htp import TARGETS, CompiledGraph, compile_graph
from export.graphs.feeds import FeedBuilder
from export.mtp.calibrate import collect_ranges
from export.mtp.chain import MtpChain
from export.mtp.quantized_graph import quantize_step
from export.observe import save_watched

from ..tiny import BACKBONE, KEEP, WINDOW, TinyHead, random_state

if TYPE_CHECKING:
    from pathlib import Path

    from export.engines.graph_io import Boundary


@dataclass(frozen=True)
class Quantized:
    """A QDQ file with its boundary; `chain` drives it."""

    path: Path
    boundary: Boundary
    chain: MtpChain


def embed(token_id: int) -> np.ndarray:
    return np.random.default_rng(token_id).standard_normal(BACKBONE).astype(np.float32)


@pytest.fixture(scope="session")
def quantized(tiny: TinyHead, float_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Quantized]:
    """Bits -> the quantised step graph."""
    folder = tmp_path_factory.mktemp("quantized")
    chain = MtpChain(FeedBuilder(tiny.config, WINDOW), KEEP, embed)
    watched = save_watched(ir.load(float_onnx), folder / "observed.onnx")
    states = [random_state(tiny.config, position, seed=position) for position in (5, 14, 30)]
    ranges = collect_ranges(watched, chain, states)
    made = {}
    for bits in (4, 8):
        step = quantize_step(ir.load(float_onnx), ranges, bits)
        ir.save(step.model, folder / f"w{bits}.qdq.onnx")
        made[bits] = Quantized(folder / f"w{bits}.qdq.onnx", step.boundary, chain)
    return made


@pytest.fixture(scope="session")
def compiled(quantized: dict[int, Quantized], tmp_path_factory: pytest.TempPathFactory) -> CompiledGraph:
    """The 4-bit graph for sm8850."""
    context = tmp_path_factory.mktemp("compiled") / "step.onnx"
    return compile_graph(quantized[4].path, context, TARGETS["sm8850"])


@pytest.fixture(scope="session")
def float_graph(float_onnx: Path) -> FloatGraph:
    return FloatGraph(float_onnx)
