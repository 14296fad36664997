"""The boundary of a graph as a manifest describes it, there and back."""

from __future__ import annotations

import pytest

from export.bundle import GraphInfo, TensorInfo
from export.bundle.boundary import boundary_of, tensor_info
from export.engines.graph_io import BoundaryTensor
from export.errors import BundleError

from .builders import example_manifest


def test_tensors_keep_their_order_and_fields() -> None:
    graph = example_manifest().graphs[0]
    boundary = boundary_of(graph)
    assert boundary.inputs == (BoundaryTensor("x", "uint16", (1, 3), 0.25, 32768),)
    assert boundary.outputs == (BoundaryTensor("y", "uint16", (1, 4), 1e-05, 0),)
    assert tuple(map(tensor_info, boundary.inputs)) == graph.inputs
    assert tuple(map(tensor_info, boundary.outputs)) == graph.outputs


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_floats_are_no_boundary(side: str) -> None:
    graph = example_manifest().graphs[0]
    floats = (TensorInfo(name="f", dtype="float32", shape=(1, 3)),)
    with pytest.raises(BundleError, match="tensor 'f' has no scale; the boundary of an NPU graph is quantised"):
        boundary_of(GraphInfo.model_validate({**dict(graph), side: floats}))
