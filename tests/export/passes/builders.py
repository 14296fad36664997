"""Small graphs for the tests of passes, and two ways to run a model: ONNX's slow reference and ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Arrays = dict[str, np.ndarray]


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, np.ndarray],
) -> ir.Model:
    """An opset-23 model of float inputs and outputs, with the shapes of all values inferred."""

    def infos(shapes: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "g", infos(inputs), infos(outputs), initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model, strict_mode=True))


def linear_graph(weight: np.ndarray, output: str = "logits") -> ir.Model:
    """`output` = x W with x [1, 1, 1, in]."""
    node = helper.make_node("MatMul", ["x", "w"], [output], name="linear")
    return graph_of([node], {"x": [1, 1, 1, weight.shape[0]]}, {output: [1, 1, 1, weight.shape[1]]}, {"w": weight})


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run_reference(model: ir.Model, feed: Arrays) -> Arrays:
    """ONNX's own reference implementation."""
    evaluator = ReferenceEvaluator(ir.to_proto(model))
    return dict(zip(evaluator.output_names, evaluator.run(None, feed), strict=True))


def run_ort(model: ir.Model, feed: Arrays) -> Arrays:
    """ONNX Runtime without graph optimisation."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))


def nodes_of(model: ir.Model, operator: str) -> list[ir.Node]:
    """All nodes of one operator, in order."""
    return [node for node in model.graph if node.op_type == operator]
