"""Every place in which an ONNX file can name another file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.bundle.onnx_files import external_files, io_names, missing_external_files
from export.errors import BundleError

from .builders import save_context_onnx, save_external_onnx

if TYPE_CHECKING:
    from pathlib import Path


def external(name: str, location: str) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value="0")
    return tensor


def model_of(nodes: list[onnx.NodeProto], initialisers: list[onnx.TensorProto]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    return helper.make_model(helper.make_graph(nodes, "g", [value], [value], initialisers))


def test_initialisers_attributes_subgraphs_and_functions() -> None:
    inner = helper.make_graph([], "then", [], [], [external("c", "sub.data")])
    nodes = [
        helper.make_node("Constant", [], ["a"], value=external("a", "attribute.data")),
        helper.make_node("If", ["x"], ["b"], then_branch=inner),
    ]
    model = model_of(nodes, [external("w", "weights.data"), external("v", "weights.data")])
    body = [helper.make_node("Constant", [], ["f"], value=external("f", "function.data"))]
    model.functions.append(helper.make_function("d", "F", [], ["f"], body, [helper.make_opsetid("", 23)]))
    assert external_files(model) == ("attribute.data", "function.data", "sub.data", "weights.data")


def test_internal_weights_need_nothing() -> None:
    assert external_files(model_of([], [numpy_helper.from_array(np.ones(2, np.float32), "w")])) == ()


@pytest.mark.parametrize(("embed_mode", "expected"), [(0, ("qnn.bin",)), (1, ())])
def test_context_binary(tmp_path: Path, embed_mode: int, expected: tuple[str, ...]) -> None:
    save_context_onnx(tmp_path / "c.onnx", "qnn.bin", embed_mode=embed_mode)
    assert external_files(onnx.load(str(tmp_path / "c.onnx"))) == expected


def test_missing_is_relative_to_the_file(tmp_path: Path) -> None:
    save_external_onnx(tmp_path / "m.onnx", "m.data")
    assert missing_external_files(tmp_path / "m.onnx") == ()
    (tmp_path / "m.data").rename(tmp_path / "n.data")
    assert missing_external_files(tmp_path / "m.onnx") == ("m.data",)


@pytest.mark.parametrize("location", ["/tmp/w.data", "../w.data", "C:\\w.data"])
def test_location_that_cannot_travel(tmp_path: Path, location: str) -> None:
    (tmp_path / "m.onnx").write_bytes(model_of([], [external("w", location)]).SerializeToString())
    with pytest.raises(BundleError, match="cannot travel"):
        missing_external_files(tmp_path / "m.onnx")


def test_io_names_leave_initialisers_out() -> None:
    model = model_of([], [numpy_helper.from_array(np.ones(2, np.float32), "w")])
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))  # old-style, listed as input
    assert io_names(model) == (frozenset({"x"}), frozenset({"x"}))
