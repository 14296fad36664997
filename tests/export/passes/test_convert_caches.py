"""New keys and values change to 8 bits in front of the moves; past and new ones are joined as 8-bit codes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.common import name_of
from export.passes.convert_caches import ConvertCaches, DropConversions
from export.passes.quantize_activations import QuantizeActivations
from export.passes.quantize_boundary import QuantizeBoundary
from export.passes.tie_ranges import TieRanges, range_groups
from quant.affine import AffineParams, choose_asymmetric
from quant.dtypes import INT8, UINT16

from .builders import graph_of, nodes_of, random, run_ort, run_reference

HALF_KEYS, HALF_VALUES = np.float32(2**-5), np.float32(2**-4)
"""Scales of the caches: powers of two, so that x / scale has no rounding of its own."""
SIXTEEN_BITS = choose_asymmetric(torch.tensor(-8.0), torch.tensor(8.0), UINT16)


def caches() -> ir.Model:
    """Keys [1, 1, dim, slots] and values [1, 1, slots, dim]: tanh(x) 6 reshaped, joined to the past, and read again."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["bent"], name="bend"),
        helper.make_node("Mul", ["bent", "six"], ["made"], name="scale"),
        helper.make_node("Reshape", ["made", "shape"], ["rows"], name="reshape"),
        helper.make_node("Transpose", ["rows"], ["new_keys_0"], perm=[0, 1, 3, 2], name="turn"),
        helper.make_node("Reshape", ["made", "shape"], ["new_values_0"], name="keep"),
        helper.make_node("Concat", ["keys_0", "new_keys_0"], ["all_keys"], axis=3, name="join_keys"),
        helper.make_node("Concat", ["values_0", "new_values_0"], ["all_values"], axis=2, name="join_values"),
        helper.make_node("MatMul", ["all_values", "all_keys"], ["y"], name="read"),
    ]
    inputs = {"x": [2, 4], "keys_0": [1, 1, 4, 3], "values_0": [1, 1, 3, 4]}
    outputs = {"new_keys_0": [1, 1, 4, 2], "new_values_0": [1, 1, 2, 4], "y": [1, 1, 5, 5]}
    return graph_of(nodes, inputs, outputs, {"six": np.float32(6), "shape": np.array([1, 1, 2, 4])})


def eight_bits(scale: np.float32) -> AffineParams:
    return AffineParams(torch.tensor(scale.item()), torch.tensor(0, dtype=torch.int32), INT8)


def quantized() -> ir.Model:
    model = run_passes(caches(), [ConvertCaches(), TieRanges()])
    given = {"new_keys_0": eight_bits(HALF_KEYS), "new_values_0": eight_bits(HALF_VALUES)}
    params = {
        owner: next((given[name] for name in names if name in given), SIXTEEN_BITS)
        for owner, names in range_groups(model.graph).items()
    }
    return run_passes(model, [QuantizeActivations(params), DropConversions(), QuantizeBoundary()])


def sixteen_bit(x: np.ndarray) -> np.ndarray:
    """What a uint16 code of this range stands for."""
    scale, zero = np.float32(SIXTEEN_BITS.scale.item()), SIXTEEN_BITS.zero_point.item()
    return ((np.clip(np.rint(x / scale) + zero, 0, 65535) - zero) * scale).astype(np.float32)


def test_a_conversion_stands_in_front_of_the_first_move() -> None:
    model = run_passes(caches(), [ConvertCaches()])
    conversions = nodes_of(model, "Identity")
    assert [[name_of(v) for v in node.inputs if v] for node in conversions] == [["made"], ["made"]]
    readers = {name_of(node.outputs[0]): [reader.name for reader, _ in node.outputs[0].uses()] for node in conversions}
    assert readers == {"converted.new_keys_0": ["reshape"], "converted.new_values_0": ["keep"]}
    feed = {"x": random(2, 4), "keys_0": random(1, 1, 4, 3), "values_0": random(1, 1, 3, 4)}
    before, after = run_ort(caches(), feed), run_ort(model, feed)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_types_and_structure() -> None:
    model = quantized()
    types = {name_of(value): value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    cached = dict.fromkeys(("keys_0", "values_0", "new_keys_0", "new_values_0"), ir.DataType.INT8)
    assert types == {**dict.fromkeys("xy", ir.DataType.UINT16), **cached}
    assert not nodes_of(model, "Identity")
    for node in model.graph:
        if node.op_type in ("Reshape", "Transpose", "Concat"):
            (quantize, _), *others = node.outputs[0].uses()
            assert not others
            assert quantize.op_type == "QuantizeLinear"
            assert quantize.outputs[0].dtype == ir.DataType.INT8, node.name
    converting = {q.name for q in nodes_of(model, "QuantizeLinear") if len(q.inputs[0].uses()) > 1}  # type: ignore[union-attr]
    assert converting == {"converted.new_keys_0.q", "converted.new_values_0.q"}


@settings(max_examples=25, deadline=None)
@given(
    arrays.arrays(np.float32, (2, 4), elements=st.floats(-3, 3, width=32)),
    arrays.arrays(np.int8, (1, 1, 4, 3)),
    arrays.arrays(np.int8, (1, 1, 3, 4)),
)
def test_numbers(x: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
    """new = round half even(x / scale), held in -128..127; past codes go through the concatenation untouched."""
    x = sixteen_bit(x)
    codes = np.rint(x / np.float32(SIXTEEN_BITS.scale.item())) + SIXTEEN_BITS.zero_point.item()
    model = quantized()
    feed = {"x": codes.astype(np.uint16), "keys_0": keys, "values_0": values}
    result = run_reference(model, feed)
    for name, array in run_ort(model, feed).items():
        step = 1 if name != "y" else 2  # tanh's last bit, and its product's
        np.testing.assert_allclose(array.astype(int), result[name].astype(int), atol=step)
    made = sixteen_bit(sixteen_bit(np.tanh(x)) * np.float32(6)).reshape(1, 1, 2, 4)
    new = {
        "new_keys_0": np.clip(np.rint(made / HALF_KEYS), -128, 127).swapaxes(2, 3),
        "new_values_0": np.clip(np.rint(made / HALF_VALUES), -128, 127),
    }
    for name, wanted in new.items():
        assert result[name].dtype == np.int8
        np.testing.assert_allclose(result[name], wanted, atol=1)
    all_values = np.concatenate([values, result["new_values_0"]], axis=2) * HALF_VALUES
    all_keys = np.concatenate([keys, result["new_keys_0"]], axis=3) * HALF_KEYS
    product = sixteen_bit(all_values @ all_keys)
    y = (result["y"].astype(np.float32) - SIXTEEN_BITS.zero_point.item()) * np.float32(SIXTEEN_BITS.scale.item())
    np.testing.assert_allclose(y, product, atol=1.5 * SIXTEEN_BITS.scale.item())


def test_halves_round_to_even_and_large_ones_saturate() -> None:
    """A cache of plain copies, at x.5 codes."""
    node = helper.make_node("Reshape", ["x", "shape"], ["new_keys_0"], name="move")
    model = graph_of([node], {"x": [6]}, {"new_keys_0": [1, 6]}, {"shape": np.array([1, 6])})
    run_passes(model, [ConvertCaches(), TieRanges()])
    wide = AffineParams(torch.tensor(0.5), torch.tensor(32768, dtype=torch.int32), UINT16)
    params = {"x": wide, "converted.new_keys_0": eight_bits(np.float32(1))}
    run_passes(model, [QuantizeActivations(params), DropConversions(), QuantizeBoundary()])
    x = np.array([0.5, 1.5, -2.5, 2.5, 200.5, -200.5])
    (found,) = run_ort(model, {"x": (x / 0.5 + 32768).astype(np.uint16)}).values()
    assert found.tolist() == [[0, 2, -2, 2, 127, -128]]


def test_graphs_without_caches_are_left_alone() -> None:
    model = graph_of([helper.make_node("Tanh", ["x"], ["y"])], {"x": [2]}, {"y": [2]}, {})
    assert not ConvertCaches()(model).modified
    assert not DropConversions()(model).modified


def test_an_output_that_no_move_made() -> None:
    model = graph_of([helper.make_node("Tanh", ["x"], ["new_keys_3"])], {"x": [2]}, {"new_keys_3": [2]}, {})
    with pytest.raises(PassError, match="ConvertCaches failed: graph output 'new_keys_3' is not the result of a move"):
        run_passes(model, [ConvertCaches()])


@pytest.mark.parametrize("dequantized", [False, True])
def test_a_conversion_needs_quantisation_on_both_sides(dequantized: bool) -> None:
    model = run_passes(caches(), [ConvertCaches()])
    if dequantized:
        model = run_passes(model, [TieRanges()])
        params = dict.fromkeys(range_groups(model.graph), SIXTEEN_BITS)
        run_passes(model, [QuantizeActivations(params)])
        conversion = nodes_of(model, "Identity")[0]
        quantize, _ = next(iter(conversion.outputs[0].uses()))
        ir.convenience.replace_all_uses_with(quantize.outputs[0], conversion.outputs[0])
        model.graph.remove(quantize, safe=True)
    with pytest.raises(PassError, match=r"conversion new_keys_0\.convert does not stand between two quantisations"):
        run_passes(model, [DropConversions()])
