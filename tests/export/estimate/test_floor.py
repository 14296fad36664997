"""Bytes that must cross memory, and how long they take."""

from __future__ import annotations

import numpy as np
import pytest

from export.bundle import TensorInfo
from export.errors import BundleError
from export.estimate.floor import boundary_bytes, floor_us

from .builders import graph_info


def tensor(name: str, dtype: str, *shape: int) -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def test_keys_and_values_count() -> None:
    """A window of 1,024: 8 heads of 256 (sliding) and 2 of 512 (full), keys and values, 2 bytes each: 12 MiB."""
    cache = [
        tensor(f"{what}_{kind}", "int16", 1, heads, dim, 1024)
        for what in ("keys", "values")
        for kind, heads, dim in (("sliding", 8, 256), ("full", 2, 512))
    ]
    graph = graph_info("g", 1, inputs=tuple(cache), outputs=(tensor("logits_0", "uint16", 1, 1, 1, 14336),))
    assert boundary_bytes(graph) == 12 * 2**20 + 2 * 14336


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32"])
def test_item_sizes_are_numpys(dtype: str) -> None:
    graph = graph_info("g", 1, inputs=(tensor("a", dtype, 3, 5),), outputs=())
    assert boundary_bytes(graph) == np.zeros((3, 5), dtype).nbytes


def test_a_type_without_a_size() -> None:
    with pytest.raises(BundleError, match="tensor 'a' has type 'int4'; want one of int8"):
        boundary_bytes(graph_info("g", 1, inputs=(tensor("a", "int4", 3),)))


@pytest.mark.parametrize(("size", "gbps", "us"), [(60_000, 60.0, 1.0), (1_000_000_000, 1.0, 1e6), (0, 5.0, 0.0)])
def test_floor(size: int, gbps: float, us: float) -> None:
    assert floor_us(size, gbps) == pytest.approx(us)
