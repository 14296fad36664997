"""ONNX Runtime on the CPU runs what is written, quantised or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from export.engines.cpu import FloatGraph, QuantizedGraph, cpu_session
from export.engines.graph_io import joined_logits

from ..tiny import TinyHead, random_state, run_torch

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Quantized


def test_float_graph_is_the_head(tiny: TinyHead, quantized: dict[int, Quantized], float_graph: FloatGraph) -> None:
    chain = quantized[4].chain
    for step in chain.run(float_graph, random_state(tiny.config, 9)):
        hidden, logits = run_torch(tiny.head, step.feed)
        np.testing.assert_allclose(step.result["next_hidden"].ravel(), hidden, atol=1e-4)
        np.testing.assert_allclose(step.logits, logits[chain.token_ids], atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_equal_onnx_reference(tiny: TinyHead, quantized: dict[int, Quantized], bits: int) -> None:
    """ORT against onnx's slow evaluator on the same QDQ file: a code or two apart where sums differ in the last bit."""
    made = quantized[bits]
    graph = QuantizedGraph(cpu_session(made.path), made.boundary)
    step = next(made.chain.run(graph, random_state(tiny.config, 9), steps=1))
    codes = made.boundary.encode(step.feed)
    reference = ReferenceEvaluator(onnx.load(str(made.path)))
    wanted = reference.run([tensor.name for tensor in made.boundary.outputs], codes)
    for tensor, ours, theirs in zip(made.boundary.outputs, graph.run_codes(codes), wanted, strict=True):
        apart = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
        assert apart.max() <= 0.002 * 65535, tensor.name
        assert apart.mean() <= 16, tensor.name


def test_more_bits_are_nearer_to_the_float_graph(
    tiny: TinyHead, quantized: dict[int, Quantized], float_graph: FloatGraph
) -> None:
    """Random heads amplify noise; 8 bits must still be 20 dB clean, and 4 bits ten times noisier."""
    noise = {}
    for bits, made in quantized.items():
        graph = QuantizedGraph(cpu_session(made.path), made.boundary)
        ratios = []
        for position in (5, 9, 14, 30):
            (step,) = made.chain.run(float_graph, random_state(tiny.config, position, seed=position), steps=1)
            logits = joined_logits(graph.run(step.feed)).ravel()
            ratios.append(np.square(logits - step.logits).mean() / np.square(step.logits).mean())
        noise[bits] = float(np.mean(ratios))
    assert noise[8] < 0.01
    assert 10 * noise[8] < noise[4] < 0.5


def test_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ort_errors.NoSuchFile):
        cpu_session(tmp_path / "absent.onnx")
