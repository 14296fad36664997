"""Products in pieces: the same numbers as whole ones, and ranges that do not depend on what filled a piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import pytest

from export.activation_params import activation_params, boundary_of, owners_of
from export.engines.cpu import FloatGraph, QuantizedGraph, cpu_session
from export.errors import PassError
from export.graphs.feeds import FeedBuilder
from export.mtp import split_products
from export.mtp.calibrate import collect_ranges
from export.mtp.chain import MtpChain
from export.mtp.quantized_graph import QuantizedStep, quantize_step
from export.mtp.split_products import PIECES, SplitProducts, worth_splitting
from export.observe import save_graph, save_watched
from export.parity import cosine
from export.passes import run_passes, tie_ranges
from export.passes.common import MOVES
from export.passes.quantize_activations import QuantizeActivations
from export.passes.quantize_boundary import QuantizeBoundary
from export.passes.quantize_weights import QuantizeWeights
from export.passes.tie_ranges import TieRanges
from quant.dtypes import INT8, INT16

from ..tiny import KEEP, WINDOW, TinyHead, last_rows, random_state, run_transformers
from .conftest import random_rows

if TYPE_CHECKING:
    from pathlib import Path

    from calibration.states import HeadState
    from export.activation_params import Range
    from export.graphs.feeds import Feed

CALIBRATED = [(1 + seed % 2, seed) for seed in range(12)]
"""Positions and seeds of calibration states: texts that fill no more than the first of four pieces of the window."""
KEYS_VALUES = ("keys_sliding", "values_sliding", "keys_full", "values_full")


@dataclass(frozen=True)
class Short:
    """The tiny head calibrated on short texts; its window of 8 is to be cut into pieces of two slots."""

    folder: Path
    chain: MtpChain
    states: list[HeadState]
    ranges: dict[str, Range]

    def model(self) -> ir.Model:
        return ir.load(self.folder / "float.onnx")

    def cut(self) -> ir.Model:
        return run_passes(self.model(), [SplitProducts()])

    def feed(self, state: HeadState) -> Feed:
        return self.chain.feeds.step(self.chain.feeds.context(state), state.embedding, state.hidden)

    def run(self, step: QuantizedStep, feed: Feed) -> Feed:
        ir.save(step.model, self.folder / "qdq.onnx")
        return QuantizedGraph(cpu_session(self.folder / "qdq.onnx"), step.boundary).run(feed)


@pytest.fixture(scope="module")
def short(tiny: TinyHead, float_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Short:
    folder = tmp_path_factory.mktemp("short")
    chain = MtpChain(FeedBuilder(tiny.config, WINDOW), KEEP, random_rows)
    model = ir.load(float_onnx)
    save_graph(model, folder / "float.onnx")
    watched = save_watched(model, folder / "observed.onnx")
    states = [random_state(tiny.config, position, seed) for position, seed in CALIBRATED]
    return Short(folder, chain, states, collect_ranges(watched, chain, states))


@pytest.fixture
def cut_short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantise the tiny head's window as one that crowds the NPU's fast memory is quantised."""
    monkeypatch.setattr(split_products, "_CROWDED_BYTES", 1)


@pytest.mark.parametrize(
    ("window", "heads", "head_dim", "worth"),
    [
        (1024, 8, 256, True),  # the 26B-A4B head's sliding layers: 2 x 4 MiB
        (2048, 8, 256, True),
        (896, 8, 256, True),
        (892, 8, 256, False),
        (768, 8, 256, False),
        (1024, 2, 512, False),
        (1026, 8, 256, False),  # does not divide by four
        (1024, 8, 258, False),
        (1024, 1, 64, False),
    ],
)
def test_which_graphs_are_cut(window: int, heads: int, head_dim: int, worth: bool) -> None:
    def value(name: str, *shape: int) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))

    inputs = [value("keys_sliding", 1, heads, head_dim, window), value("values_sliding", 1, heads, window, head_dim)]
    inputs += [value("keys_full", 1, 1, 64, window), value("values_full", 1, 1, window, 64)]
    assert worth_splitting(ir.Graph(inputs, [], nodes=[])) is worth


@pytest.mark.parametrize("position", [1, 3, 6, 8, 11])
def test_float_graph_in_pieces_equals_the_whole_and_transformers(short: Short, tiny: TinyHead, position: int) -> None:
    save_graph(short.cut(), short.folder / "pieces.onnx")
    state = random_state(tiny.config, position, seed=3)
    feed = short.feed(state)
    whole, pieces = (FloatGraph(short.folder / name).run(feed) for name in ("float.onnx", "pieces.onnx"))
    assert whole.keys() == pieces.keys() == {"next_hidden", "logits_0"}
    for name, array in whole.items():
        np.testing.assert_allclose(pieces[name], array, atol=1e-5)
    hidden, logits = run_transformers(tiny.model, last_rows(state, {"sliding": WINDOW, "full": WINDOW}), position)
    np.testing.assert_allclose(pieces["next_hidden"].ravel(), hidden, atol=1e-4)
    np.testing.assert_allclose(pieces["logits_0"].ravel(), logits[KEEP], atol=1e-4)


def test_every_product_is_with_a_quarter(short: Short, tiny: TinyHead) -> None:
    operands = [node.inputs[1] for node in short.cut().graph if node.op_type == "MatMul"]
    dynamic = [value for value in operands if value is not None and not value.is_initializer()]
    assert len(dynamic) == 4 * 2 * PIECES  # layers, keys and values
    kinds = {"sliding": (2, 16), "full": (1, 32)}  # heads of keys and values, and their dimensions
    for value in dynamic:
        role, kind = (value.name or "").split(".")[0].split("_")
        heads, dim = kinds[kind]
        wanted = (1, heads, dim, WINDOW // 4) if role == "keys" else (1, heads, WINDOW, dim // 4)
        assert tuple(value.shape or ()) == wanted


def test_keys_that_are_read_otherwise(short: Short) -> None:
    model = short.model()
    keys = next(value for value in model.graph.inputs if value.name == "keys_full")
    model.graph.append(ir.node("Tanh", [keys], name="elsewhere"))
    with pytest.raises(PassError, match=r"SplitProducts failed: 'keys_full' is read by \['elsewhere'\]"):
        run_passes(model, [SplitProducts()])


def untied(short: Short) -> QuantizedStep:
    """Every piece of the scores with a range of its own: what the calibration texts left in it."""
    ranges = collect_ranges(save_watched(short.cut(), short.folder / "cut.onnx"), short.chain, short.states)
    model = short.cut()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tie_ranges, "MOVES", MOVES - {"Concat"})
        run_passes(model, [TieRanges([("embedding", "hidden", "next_hidden")])])
    params = activation_params(model.graph, ranges, dict.fromkeys(KEYS_VALUES, INT16))
    owners, weights = owners_of(model.graph), QuantizeWeights(INT8)
    run_passes(model, [weights, QuantizeActivations(params), QuantizeBoundary()])
    return QuantizedStep(model, boundary_of(model.graph, params, owners), weights.quantized)


@pytest.mark.usefixtures("cut_short_windows")
def test_texts_longer_than_any_calibration_text(short: Short, tiny: TinyHead) -> None:
    """Calibration saw nothing in the second, third and fourth piece: with what it saw there, drafts are lost."""
    made, without = quantize_step(short.model(), short.ranges, 8), untied(short)
    for position in (4, 7, 8):
        state = random_state(tiny.config, position, seed=20)
        step = next(short.chain.run(FloatGraph(short.folder / "float.onnx"), state))
        logits, lost = (short.run(graph, step.feed)["logits_0"] for graph in (made, without))
        assert cosine(logits, step.logits) > 0.999
        assert int(logits.argmax()) == int(step.logits.argmax())
        assert cosine(lost, step.logits) < 0.99


@pytest.mark.usefixtures("cut_short_windows")
def test_pieces_have_the_range_of_the_whole(short: Short) -> None:
    initializers = quantize_step(short.model(), short.ranges, 4).model.graph.initializers
    for layer in range(4):
        for product in ("matmul", "matmul#2"):
            name = f"layers.{layer}.self_attn.{product}"
            (owner,) = [key for key in initializers if key.startswith(name + ".piece") and key.endswith(".scale")]
            scale = initializers[owner].const_value
            assert scale is not None
            low, high = short.ranges[name]
            assert float(scale.numpy()) == pytest.approx(1.25 * (max(high, 0) - min(low, 0)) / 65535, rel=1e-6)


@pytest.mark.usefixtures("cut_short_windows")
def test_only_16_bit_keys_and_values_are_cut_and_one_calibration_serves_both(short: Short) -> None:
    products = []
    for kv_bits in (16, 8):
        step = quantize_step(short.model(), short.ranges, 4, kv_bits)
        products.append([node.op_type for node in step.model.graph].count("MatMul"))
    assert products[0] - products[1] == 4 * 2 * (PIECES - 1)
