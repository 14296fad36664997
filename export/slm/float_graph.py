"""The SLM's graphs with the checkpoint's codes and float activations: traced, named, chunked, never held in float.

Every weight of the traced module is a single number, expanded, until a pass puts codes in its place, so that a graph of
the real dimensions needs the memory of its codes and no more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.checkpoint.slm_tensors import linear_shapes
from export.graphs.clips import add_clips
from export.graphs.slm import Slm, SlmInputs, load_slm
from export.graphs.trace import trace_module
from export.passes import run_passes
from export.passes.chunk_head import ChunkHead
from export.passes.common import name_of
from export.passes.convert_caches import ConvertCaches
from export.passes.fold_transposes import FoldTransposes
from export.passes.name_values import NameValues
from export.passes.store_codes import StoreCodes
from export.slm.weights import HEAD_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from export.checkpoint.slm import SlmCheckpoint
    from export.passes.store_codes import CodedWeight


def build_graph(
    checkpoint: SlmCheckpoint, weights: Mapping[str, CodedWeight], keep_size: int, rows: int, window: int, clip: bool
) -> ir.Model:
    """The draft graph of `rows` rows: raw logits over the keep set in chunks, new keys and values of every owner.

    `weights` are `coded_weights`; linear layers that it lacks (unquantised in the checkpoint) hold their floats. `clip`
    bounds what goes into and comes out of linear layers as the checkpoint says.
    """
    slm = _module(checkpoint, keep_size)
    if clip:
        linears = linear_shapes(checkpoint.config)
        add_clips(slm, {module: checkpoint.activation_scales(module) for module in linears})
    inputs = SlmInputs(slm.config, rows, window)
    model = trace_module(slm, inputs.shapes(), list(inputs.output_shapes()))
    return run_passes(
        model,
        [FoldTransposes(), NameValues(), ChunkHead(max_columns=HEAD_COLUMNS), StoreCodes(weights), ConvertCaches()],
    )


def keep_caches_only(model: ir.Model) -> ir.Model:
    """Make a draft graph a prefill graph, in place: it fills the caches and predicts nothing.

    Only layers up to the last that owns a cache are left; inputs that nothing reads are gone.
    """
    graph = model.graph
    for value in [value for value in graph.outputs if name_of(value).startswith("logits_")]:
        graph.outputs.remove(value)
    RemoveUnusedNodesPass()(model)
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    return model


def _module(checkpoint: SlmCheckpoint, keep_size: int) -> Slm:
    """The SLM with its norms, scalars and unquantised layers, and one number each where codes will come.

    The numbers differ, or the tracer would take two such weights, and products with them, for the same.
    """
    config = replace(checkpoint.config, vocab_size=keep_size)
    state = {}
    with torch.device("meta"):
        names = Slm(config).state_dict()
    for number, (name, tensor) in enumerate(names.items()):
        module = name.removesuffix(".weight")
        if name != module and module in linear_shapes(config) and checkpoint.bits_of(module) is not None:
            state[name] = torch.full((1, 1), float(number)).expand(tensor.shape)
        else:
            state[name] = checkpoint.floats(name)
    return load_slm(config, state)
