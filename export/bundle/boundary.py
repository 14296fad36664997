"""A graph's integer boundary as its manifest describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from export.bundle.manifest import TensorInfo
from export.engines.graph_io import Boundary, BoundaryTensor
from export.errors import BundleError

if TYPE_CHECKING:
    from export.bundle.manifest import GraphInfo


def boundary_of(graph: GraphInfo) -> Boundary:
    """The integer boundary that a manifest describes."""
    return Boundary(tuple(map(_tensor, graph.inputs)), tuple(map(_tensor, graph.outputs)))


def tensor_info(tensor: BoundaryTensor) -> TensorInfo:
    """The manifest's entry for a tensor of the boundary."""
    return TensorInfo(
        name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, scale=tensor.scale, zero_point=tensor.zero_point
    )


def _tensor(info: TensorInfo) -> BoundaryTensor:
    if info.scale is None or info.zero_point is None:
        raise BundleError(f"manifest: tensor {info.name!r} has no scale; the boundary of an NPU graph is quantised")
    return BoundaryTensor(info.name, info.dtype, info.shape, info.scale, info.zero_point)
