"""Names: every value is called after the module and the operator that made it.

    linear_4            -> layers.0.mlp.up_proj
    val_54 (its weight) -> layers.0.mlp.up_proj.weight
    softmax             -> layers.0.self_attn.softmax

Ranges, reports and errors speak of values by these names, so they must not depend on the order of tracing.
"""

from __future__ import annotations

import ast
from collections import Counter

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import is_constant, name_of, weight_matmuls

_SCOPES = "pkg.torch.onnx.name_scopes"


class NameValues(InPlacePass):
    """Rename node outputs and linear weights by module path; graph inputs and outputs keep their names."""

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        taken: Counter[str] = Counter()
        for node in graph:
            stem = _stem(node)
            for index, value in enumerate(node.outputs):
                if value.is_graph_output():
                    continue
                wanted = stem if len(node.outputs) == 1 else f"{stem}.{index}"
                taken[wanted] += 1
                value.name = wanted if taken[wanted] == 1 else f"{wanted}#{taken[wanted]}"
            node.name = f"{name_of(node.outputs[0])}@{node.op_type}"
        for node in weight_matmuls(graph):
            self._name_weight(graph, node)
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        names = Counter(name_of(value) for node in model.graph for value in node.outputs)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise PassError(f"values share a name: {twice}")

    def _name_weight(self, graph: ir.Graph, node: ir.Node) -> None:
        weight = node.inputs[1]
        assert weight is not None
        path = _module_path(node)
        name = f"{path}.weight"
        if not path or weight.name == name:
            return
        if name in graph.initializers:
            raise PassError(f"two different weights belong to module {path!r}")
        tensor = weight.const_value
        renamed = ir.Value(name=name, shape=weight.shape, type=weight.type, const_value=tensor)
        graph.initializers[name] = renamed
        node.replace_input_with(1, renamed)
        if not weight.uses() and is_constant(weight):
            del graph.initializers[name_of(weight)]


def _scopes(node: ir.Node) -> list[str]:
    text = node.metadata_props.get(_SCOPES)
    return list(ast.literal_eval(text)) if text else []


def _module_path(node: ir.Node) -> str:
    scopes = _scopes(node)
    return scopes[-2] if len(scopes) > 1 else ""


def _stem(node: ir.Node) -> str:
    scopes = _scopes(node)
    if not scopes:  # decompositions lose their scope: name them after what they read
        first = node.inputs[0]
        return f"{first.name if first is not None else 'node'}.{node.op_type.lower()}"
    path = _module_path(node)
    is_linear = node.op_type == "MatMul" and is_constant(node.inputs[1])
    is_norm = node.op_type == "RMSNormalization"
    if path and (is_linear or is_norm):
        return path
    return f"{path}.{node.op_type.lower()}" if path else node.op_type.lower()
