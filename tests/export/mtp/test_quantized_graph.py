"""The whole quantised step: ranges, ties, fixed ranges, types at the boundary, and masks that stay masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import pytest

from export.engines.cpu import FloatGraph, QuantizedGraph, cpu_session
from export.errors import ExportError
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import MtpInputs
from export.mtp.calibrate import collect_ranges
from export.mtp.chain import MtpChain
from export.mtp.quantized_graph import QuantizedStep, quantize_step
from export.observe import save_graph, save_watched
from export.parity import cosine
from quant.dtypes import INT4
from quant.weights import Clip, quantize_weight

from ..tiny import KEEP, TinyHead, random_state
from .conftest import random_rows

if TYPE_CHECKING:
    from pathlib import Path

    from export.activation_params import Range


@dataclass(frozen=True)
class Floats:
    """A float step graph on disk with ranges of long prompts: no slot of any window was ever masked."""

    folder: Path
    chain: MtpChain
    ranges: dict[str, Range]

    def model(self) -> ir.Model:
        return ir.load(self.folder / "float.onnx")

    def quantize(self, bits: int = 4, kv_bits: int = 16) -> QuantizedStep:
        return quantize_step(self.model(), self.ranges, bits, kv_bits)


@pytest.fixture(scope="module")
def floats(tiny: TinyHead, float_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Floats:
    folder = tmp_path_factory.mktemp("floats")
    chain = MtpChain(FeedBuilder(tiny.config, 8), KEEP, random_rows)
    model = ir.load(float_onnx)
    save_graph(model, folder / "float.onnx")
    watched = save_watched(model, folder / "observed.onnx")
    states = [random_state(tiny.config, position, seed=position) for position in (20, 30)]
    return Floats(folder, chain, collect_ranges(watched, chain, states))


@pytest.fixture(scope="module")
def step(floats: Floats) -> QuantizedStep:
    return floats.quantize()


def test_ranges_are_the_extremes_of_what_ran(floats: Floats, tiny: TinyHead) -> None:
    """Two chains of four steps: the range of a graph output and of an input, taken by hand."""
    graph = FloatGraph(floats.folder / "float.onnx")
    steps = [s for p in (20, 30) for s in floats.chain.run(graph, random_state(tiny.config, p, seed=p))]
    for name in ("next_hidden", "logits_0"):
        values = np.concatenate([s.result[name].ravel() for s in steps])
        assert floats.ranges[name] == pytest.approx((values.min(), values.max()), abs=1e-5)
    for name in ("embedding", "keys_full", "cos_sliding"):
        values = np.concatenate([s.feed[name].ravel() for s in steps])
        assert floats.ranges[name] == (values.min(), values.max())


def test_observing_leaves_the_model_as_it_was(floats: Floats) -> None:
    assert [v.name for v in floats.model().graph.outputs] == ["next_hidden", "logits_0"]
    assert len(ir.load(floats.folder / "observed.onnx").graph.outputs) > 100


def test_boundary_types(step: QuantizedStep, tiny: TinyHead) -> None:
    assert [t.name for t in step.boundary.inputs] == list(MtpInputs(tiny.config, 8).shapes())
    for tensor in (*step.boundary.inputs, *step.boundary.outputs):
        if tensor.name.startswith(("keys", "values")):
            assert (tensor.dtype, tensor.zero_point) == ("int16", 0)
        else:
            assert tensor.dtype == "uint16"
    graph = {v.name: v for v in (*step.model.graph.inputs, *step.model.graph.outputs)}
    assert {v.dtype for v in graph.values()} == {ir.DataType.INT16, ir.DataType.UINT16}
    for tensor in (*step.boundary.inputs, *step.boundary.outputs):
        assert tuple(graph[tensor.name].shape or ()) == tensor.shape


def test_second_operand_of_a_dynamic_product_is_int16(step: QuantizedStep) -> None:
    """HTP turns a 16-bit unsigned one into 8 bits without a word."""
    products = 0
    for node in step.model.graph:
        if node.op_type == "MatMul":
            restored = node.inputs[1].producer() if node.inputs[1] is not None else None
            assert restored is not None
            source = restored.inputs[0]
            assert source is not None
            if not source.is_initializer():
                products += 1
                assert source.dtype == ir.DataType.INT16
            else:
                assert source.dtype == ir.DataType.INT4
                assert restored.attributes["axis"].as_int() == 1
    assert products == 8


def test_eight_bit_keys_and_values(floats: Floats, tiny: TinyHead) -> None:
    """int8 with zero point 0 over the calibrated magnitude and a quarter; everything else as with 16 bits."""
    wide, narrow = floats.quantize(8), floats.quantize(8, kv_bits=8)
    kept = [t for t in wide.boundary.inputs if not t.name.startswith(("keys", "values"))]
    assert kept == [t for t in narrow.boundary.inputs if not t.name.startswith(("keys", "values"))]
    assert narrow.boundary.outputs == wide.boundary.outputs
    tensors = [t for t in narrow.boundary.inputs if t.name.startswith(("keys", "values"))]
    assert len(tensors) == 4
    for tensor in tensors:
        assert (tensor.dtype, tensor.zero_point) == ("int8", 0)
        largest = max(map(abs, floats.ranges[tensor.name]))
        assert tensor.scale == pytest.approx(1.25 * largest / 127, rel=1e-6)
    ir.save(narrow.model, floats.folder / "kv8.onnx")
    graph = QuantizedGraph(cpu_session(floats.folder / "kv8.onnx"), narrow.boundary)
    reference = next(floats.chain.run(FloatGraph(floats.folder / "float.onnx"), random_state(tiny.config, 20, seed=20)))
    assert cosine(graph.run(reference.feed)["logits_0"], reference.logits) > 0.99


def scale_of(step: QuantizedStep, owner: str) -> float:
    tensor = step.model.graph.initializers[f"{owner}.scale"].const_value
    assert tensor is not None
    return float(tensor.numpy())


def test_states_that_come_back_share_one_range(step: QuantizedStep, floats: Floats) -> None:
    tensors = {t.name: t for t in (*step.boundary.inputs, *step.boundary.outputs)}
    shared = {(tensors[n].scale, tensors[n].zero_point) for n in ("embedding", "hidden", "next_hidden")}
    low = min(floats.ranges[n][0] for n in ("embedding", "hidden", "next_hidden", "concat"))
    high = max(floats.ranges[n][1] for n in ("embedding", "hidden", "next_hidden", "concat"))
    ((scale, zero_point),) = shared
    assert scale == pytest.approx(1.25 * (high - low) / 65535, rel=1e-6)
    assert zero_point == pytest.approx(-1.25 * low / scale, abs=0.51)


def test_fixed_ranges(step: QuantizedStep) -> None:
    for layer in range(4):
        assert scale_of(step, f"layers.{layer}.self_attn.softmax") == np.float32(1 / 65535)
    tensors = {t.name: t for t in step.boundary.inputs}
    for kind in ("sliding", "full"):
        assert tensors[f"mask_{kind}"].scale == pytest.approx(100 / 65535)
        assert tensors[f"cos_{kind}"].scale == tensors[f"sin_{kind}"].scale == pytest.approx(2 / 65535)


def test_mask_does_not_eat_the_scale_of_the_scores(step: QuantizedStep, floats: Floats) -> None:
    """-65504 would give steps of 1.0; -100 gives 2e-3 (row 11)."""
    for layer in range(4):
        name = f"layers.{layer}.self_attn.add#2"
        scale, (_, high) = scale_of(step, name), floats.ranges[name]
        assert 100 / 65535 < scale <= (1.25 * 200 + 1.25 * high) / 65535
        assert scale < 0.01


@pytest.mark.parametrize("position", [1, 3, 7])
def test_short_prompts_after_a_calibration_of_long_ones(
    floats: Floats, step: QuantizedStep, tiny: TinyHead, position: int
) -> None:
    """No masked slot was ever calibrated; what lies in one must have no influence all the same."""
    ir.save(step.model, floats.folder / "short.onnx")
    graph = QuantizedGraph(cpu_session(floats.folder / "short.onnx"), step.boundary)
    state = random_state(tiny.config, position, seed=20)
    builder = floats.chain.feeds
    feed = builder.step(builder.context(state), state.embedding, state.hidden)
    dirty = {name: array.copy() for name, array in feed.items()}
    for kind in ("sliding", "full"):
        dirty[f"keys_{kind}"][..., position:] = 2.0
        dirty[f"values_{kind}"][:, :, position:] = 3.0
    clean_result, dirty_result = graph.run(feed), graph.run(dirty)
    for name, array in clean_result.items():
        np.testing.assert_array_equal(array, dirty_result[name])


def test_every_weight_is_quantised_as_quant_does(step: QuantizedStep, tiny: TinyHead) -> None:
    parameters = dict(tiny.head.named_parameters())
    matrices = {name for name, p in parameters.items() if p.dim() == 2} - {"lm_head.weight"}
    assert matrices | {"lm_head.weight.kept.0"} == step.weights.keys()
    for name, weight in step.weights.items():
        rows = parameters["lm_head.weight"][KEEP] if name.startswith("lm_head") else parameters[name]
        wanted = quantize_weight(rows.detach(), INT4, Clip.MSE)
        np.testing.assert_array_equal(weight.codes.numpy(), wanted.codes.numpy())
        np.testing.assert_array_equal(weight.scale.numpy(), wanted.scale.numpy())


def test_eight_bits_are_near_the_float_graph(floats: Floats, tiny: TinyHead) -> None:
    made = floats.quantize(8)
    ir.save(made.model, floats.folder / "w8.onnx")
    graph = QuantizedGraph(cpu_session(floats.folder / "w8.onnx"), made.boundary)
    reference = next(floats.chain.run(FloatGraph(floats.folder / "float.onnx"), random_state(tiny.config, 20, seed=20)))
    result = graph.run(reference.feed)
    assert cosine(result["logits_0"], reference.logits) > 0.99


def test_a_range_that_is_missing_is_named(floats: Floats) -> None:
    del (ranges := dict(floats.ranges))["layers.2.mlp.gelu"]
    with pytest.raises(ExportError, match=r"no range for \['layers\.2\.mlp\.gelu'\]: calibrate this very graph"):
        quantize_step(floats.model(), ranges, 4)


def test_a_range_of_another_graph_is_named(floats: Floats) -> None:
    with pytest.raises(ExportError, match=r"of another graph, this one has no \['layers\.4\.mlp\.gelu'\]"):
        quantize_step(floats.model(), {**floats.ranges, "layers.4.mlp.gelu": (0.0, 1.0)}, 4)


@pytest.mark.parametrize("bits", [2, 3, 16])
def test_bits(floats: Floats, bits: int) -> None:
    with pytest.raises(ExportError, match=rf"{bits}-bit weights are not supported"):
        quantize_step(floats.model(), floats.ranges, bits)


@pytest.mark.parametrize("kv_bits", [4, 32])
def test_kv_bits(floats: Floats, kv_bits: int) -> None:
    with pytest.raises(ExportError, match=rf"{kv_bits}-bit keys and values are not supported; use one of \[8, 16\]"):
        floats.quantize(kv_bits=kv_bits)
