"""Which other files an .onnx file needs, and what it calls its inputs and outputs; the weights are not loaded.

Two mechanisms leave bytes outside of the .onnx file: ONNX external data (initialisers and tensor attributes with a
`location`), and ONNX Runtime's EPContext node (embed_mode 0), whose `ep_cache_context` names the compiled binary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from export.bundle.manifest import check_relative_path
from export.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_EMBEDDED = 1  # embed_mode of EPContext: the binary lies in the attribute itself


def read_skeleton(path: Path) -> onnx.ModelProto:
    """Parse an .onnx file without its external data; raises BundleError where it is not one."""
    try:
        return onnx.load(str(path), load_external_data=False)
    except (OSError, DecodeError, ValueError) as error:
        raise BundleError(f"{path} is not a readable ONNX file ({error}); export again or copy it again") from error


def external_files(model: onnx.ModelProto) -> tuple[str, ...]:
    """Locations of external data and of compiled binaries that the model names, sorted, as written in the file."""
    graphs = list(_graphs(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    tensors += [t for node in nodes for a in node.attribute for t in (a.t, *a.tensors)]
    return tuple(sorted({*_locations(tensors), *_binaries(nodes)}))


def missing_external_files(path: Path) -> tuple[str, ...]:
    """External files that the .onnx at `path` needs and that do not lie beside it.

    Raises BundleError for a location that is absolute or leaves the folder: such a file cannot be moved.
    """
    names = external_files(read_skeleton(path))
    for name in names:
        try:
            check_relative_path(name)
        except ValueError as error:
            raise BundleError(f"{path} names external data that cannot travel with it: {error}") from error
    return tuple(name for name in names if not (path.parent / name).is_file())


def io_names(model: onnx.ModelProto) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the graph's inputs (without initialisers) and of its outputs."""
    initialisers = {tensor.name for tensor in model.graph.initializer}
    inputs = frozenset(value.name for value in model.graph.input) - initialisers
    return inputs, frozenset(value.name for value in model.graph.output)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _locations(tensors: Iterable[onnx.TensorProto]) -> Iterator[str]:
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _binaries(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        if node.op_type != "EPContext":
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        mode, context = attributes.get("embed_mode"), attributes.get("ep_cache_context")
        # The operator's default for an absent embed_mode is 1, embedded; secondary nodes share the main node's binary.
        if mode is not None and mode.i != _EMBEDDED and context is not None and context.s:
            yield context.s.decode("utf-8", errors="replace")
