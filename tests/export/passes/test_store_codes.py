"""A checkpoint's codes as they lie in the written file, and products with them, against onnx's packer and numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.store_codes import CodedWeight, Form, StoreCodes, nbits_block

from .builders import graph_of, linear_graph, nodes_of, random, run_ort

if TYPE_CHECKING:
    from pathlib import Path

FORMS: list[tuple[int, Form]] = [
    (2, "int4"), (2, "int8"), (2, "native"), (2, "nbits"), (4, "int4"), (4, "int8"), (8, "int8"),
]  # fmt: skip


def numbers(rows: int, columns: int, bits: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the whole range, int8 [rows, columns], and scales of very different size."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (rows, columns)).astype(np.int8)
    return codes, (0.01 * 2.0 ** rng.uniform(0, 6, rows)).astype(np.float32)


def coded(codes: np.ndarray, scale: np.ndarray, bits: int, form: Form) -> CodedWeight:
    rows, columns = codes.shape
    return CodedWeight((rows, columns), bits, form, lambda: (torch.from_numpy(codes), torch.from_numpy(scale)))


def stored(codes: np.ndarray, scale: np.ndarray, bits: int, form: Form) -> ir.Model:
    model = linear_graph(random(codes.shape[1], codes.shape[0]), "y")
    return run_passes(model, [StoreCodes({"w": coded(codes, scale, bits, form)})])


def written(model: ir.Model, folder: Path) -> dict[str, onnx.TensorProto]:
    ir.save(model, folder / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    proto = onnx.load(str(folder / "m.onnx"))
    return {tensor.name: tensor for tensor in proto.graph.initializer}


def split_bytes(raw: bytes, bits: int) -> np.ndarray:
    """The unsigned numbers of `bits` bits in `raw`, first in the low bits, by Python's own integers."""
    whole = int.from_bytes(raw, "little")
    return np.array([(whole >> place) & (2**bits - 1) for place in range(0, 8 * len(raw), bits)])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(FORMS), st.integers(1, 20), st.integers(1, 6).map(lambda n: 16 * n), st.integers(0, 99))
def test_products(kind: tuple[int, Form], rows: int, columns: int, seed: int) -> None:
    bits, form = kind
    codes, scale = numbers(rows, columns, bits, seed)
    x = random(1, 1, 3, columns, seed=seed)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="linear")
    model = graph_of([node], {"x": [1, 1, 3, columns]}, {"y": [1, 1, 3, rows]}, {"w": random(columns, rows)})
    run_passes(model, [StoreCodes({"w": coded(codes, scale, bits, form)})])
    wanted = x.astype(np.float64) @ (codes * scale[:, None].astype(np.float64)).T
    result = run_ort(model, {"x": x})["y"]
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(("bits", "form"), [kind for kind in FORMS if kind[1] != "nbits"])
@pytest.mark.parametrize("shape", [(8, 8), (6, 16), (7, 5)])
def test_codes_of_the_file(tmp_path: Path, bits: int, form: Form, shape: tuple[int, int]) -> None:
    codes, scale = numbers(*shape, bits)
    found = written(stored(codes, scale, bits, form), tmp_path)
    data_type = TensorProto.INT8 if form == "int8" else TensorProto.INT4
    assert found["w.codes"].data_type == found["w.zero"].data_type == data_type
    np.testing.assert_array_equal(numpy_helper.to_array(found["w.codes"]).astype(np.int8), codes.T)
    np.testing.assert_array_equal(numpy_helper.to_array(found["w.scale"]), scale)
    np.testing.assert_array_equal(numpy_helper.to_array(found["w.zero"]).astype(np.int8), np.zeros(shape[0]))
    if form != "int8" and codes.size % 2 == 0:
        signed = split_bytes(found["w.codes"].raw_data, 4).astype(np.int8)
        np.testing.assert_array_equal(np.where(signed > 7, signed - 16, signed), codes.T.ravel())


@pytest.mark.parametrize(("columns", "block"), [(16, 16), (48, 16), (96, 32), (256, 256), (1536, 256)])
def test_two_bit_codes_of_the_file(tmp_path: Path, columns: int, block: int) -> None:
    """MatMulNBits (onnxruntime's ContribOperators.md): rows of blocks, code + 2 in 2 bits, a scale for each block."""
    codes, scale = numbers(3, columns, 2)
    found = written(stored(codes, scale, 2, "nbits"), tmp_path)
    assert found["w.codes"].data_type == TensorProto.UINT8
    assert list(found["w.codes"].dims) == [3, columns // block, block // 4]
    np.testing.assert_array_equal(split_bytes(found["w.codes"].raw_data, 2) - 2, codes.ravel())
    wanted = [value for value in scale for _ in range(columns // block)]
    np.testing.assert_array_equal(numpy_helper.to_array(found["w.scale"]), np.array(wanted, np.float32))


@pytest.mark.parametrize(("bits", "form"), FORMS)
def test_bytes_are_those_of_the_file(tmp_path: Path, bits: int, form: Form) -> None:
    codes, scale = numbers(12, 96, bits)
    weight = coded(codes, scale, bits, form)
    found = written(stored(codes, scale, bits, form), tmp_path)
    # Of the native form the file holds 4 bits a code, the compiled graph 2.
    code_bytes = len(found["w.codes"].raw_data) // (2 if form == "native" else 1)
    assert weight.stored_bytes == code_bytes + len(found["w.scale"].raw_data)
    assert weight.stored_bits == 8 * code_bytes // codes.size
    assert "w" not in found
    assert TensorProto.INT2 not in {tensor.data_type for tensor in found.values()}


@given(st.integers(1, 1000).map(lambda n: 16 * n))
def test_block_is_the_largest_that_divides_a_row(columns: int) -> None:
    assert nbits_block(columns) == max(block for block in (16, 32, 64, 128, 256) if columns % block == 0)


def test_two_bit_product_keeps_output_name_and_shape() -> None:
    """HTP takes rank 3: the graph's rank 4 comes back behind it."""
    codes, scale = numbers(4, 16, 2)
    model = stored(codes, scale, 2, "nbits")
    (node,) = nodes_of(model, "MatMulNBits")
    assert [list(value.shape or ()) for value in (node.inputs[0], node.outputs[0]) if value] == [[1, 1, 16], [1, 1, 4]]
    assert not nodes_of(model, "MatMul")
    (output,) = model.graph.outputs
    assert (output.name, list(output.shape or ())) == ("y", [1, 1, 1, 4])


def chain_of_two() -> ir.Model:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["between"], name="first"),
        helper.make_node("MatMul", ["between", "b"], ["y"], name="second"),
    ]
    return graph_of(nodes, {"x": [1, 1, 2, 16]}, {"y": [1, 1, 2, 16]}, {"a": random(16, 16), "b": random(16, 16)})


def test_two_products_share_their_shapes_and_run() -> None:
    (first, one), (second, two) = numbers(16, 16, 2, seed=1), numbers(16, 16, 2, seed=2)
    weights = {"a": coded(first, one, 2, "nbits"), "b": coded(second, two, 2, "nbits")}
    model = run_passes(chain_of_two(), [StoreCodes(weights)])
    x = random(1, 1, 2, 16, seed=3)
    wanted = x @ (first * one[:, None]).T @ (second * two[:, None]).T
    np.testing.assert_allclose(run_ort(model, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)


def test_weights_that_are_not_named_stay() -> None:
    codes, scale = numbers(16, 16, 4)
    model = run_passes(chain_of_two(), [StoreCodes({"b": coded(codes, scale, 4, "int4")})])
    kept = model.graph.initializers["a"].const_value
    assert kept is not None
    np.testing.assert_array_equal(kept.numpy(), random(16, 16))
    assert {"b", "b.codes"} & model.graph.initializers.keys() == {"b.codes"}


@pytest.mark.parametrize("form", ["int4", "nbits"])
def test_one_weight_is_unpacked_at_a_time(tmp_path: Path, form: Form) -> None:
    """Nothing is read before the file is written; then all of one weight before anything of the next."""
    codes, scale = numbers(16, 16, 2)
    calls: list[str] = []

    def weight(name: str) -> CodedWeight:
        def read() -> tuple[torch.Tensor, torch.Tensor]:
            calls.append(name)
            return torch.from_numpy(codes), torch.from_numpy(scale)

        return CodedWeight((16, 16), 2, form, read)

    model = run_passes(chain_of_two(), [StoreCodes({name: weight(name) for name in "ab"})])
    assert calls == []
    written(model, tmp_path)
    assert calls == ["a", "a", "b", "b"]  # codes, then scales


CODES, SCALE = numbers(16, 32, 2)
GOOD = coded(CODES, SCALE, 2, "nbits")


@pytest.mark.parametrize(
    ("name", "weight", "message"),
    [
        ("v", GOOD, "no weight 'v' to take the checkpoint's codes"),
        ("w", replace(GOOD, shape=(32, 16)), r"'w' is \(32, 16\) \[in, out\], its codes are \(32, 16\) \[out, in\]"),
        ("w", replace(GOOD, bits=4), "'w' has 4-bit codes in rows of 32; 2-bit storage takes 2-bit codes"),
        ("w", replace(GOOD, bits=8, form="int4"), "'w' has 8-bit codes, which int4 cannot hold"),
        ("w", replace(GOOD, bits=4, form="native"), "'w' has 4-bit codes, which native cannot hold"),
    ],
)
def test_weights_that_do_not_fit(name: str, weight: CodedWeight, message: str) -> None:
    with pytest.raises(PassError, match=f"StoreCodes failed: .*{message}"):
        run_passes(linear_graph(random(32, 16)), [StoreCodes({name: weight})])


def test_rows_that_no_block_divides() -> None:
    codes, scale = numbers(4, 24, 2)
    with pytest.raises(PassError, match="2-bit codes in rows of 24; 2-bit storage takes 2-bit codes in rows that 16"):
        stored(codes, scale, 2, "nbits")


def test_postconditions() -> None:
    class Idle(StoreCodes):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            return ir.passes.PassResult(model, modified=False)

    with pytest.raises(PassError, match=r"Idle failed: weights without their codes are left: \['w'\]"):
        run_passes(linear_graph(random(32, 16)), [Idle({"w": GOOD})])
    model = linear_graph(random(32, 16))
    model.graph.initializers["t"] = ir.Value(
        name="t", const_value=ir.Tensor(np.zeros((2, 2), ir.DataType.INT2.numpy()), dtype=ir.DataType.INT2)
    )
    model.graph.initializers["t"].dtype = ir.DataType.INT2
    with pytest.raises(PassError, match=r"\['t'\] are ONNX INT2, which HTP reads wrong"):
        run_passes(model, [Idle({})])
