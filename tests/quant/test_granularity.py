"""Group statistics against numpy's reductions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quant.errors import QuantError
from quant.granularity import PerChannel, PerTensor, absmax, low_high


@pytest.mark.parametrize(
    ("granularity", "numpy_axis", "shape"),
    [
        (PerTensor(), None, (1, 1)),
        (PerChannel(0), 1, (8, 1)),
        (PerChannel(1), 0, (1, 16)),
        (PerChannel(-1), 0, (1, 16)),
        (PerChannel(-2), 1, (8, 1)),
    ],
)
def test_scale_shapes_and_values(
    granularity: PerTensor | PerChannel, numpy_axis: int | None, shape: tuple[int, int]
) -> None:
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    low, high = low_high(torch.from_numpy(x), granularity)
    assert tuple(low.shape) == tuple(high.shape) == shape
    np.testing.assert_array_equal(low, x.min(numpy_axis, keepdims=True))
    np.testing.assert_array_equal(high, x.max(numpy_axis, keepdims=True))
    np.testing.assert_array_equal(absmax(torch.from_numpy(x), granularity), np.abs(x).max(numpy_axis, keepdims=True))


def test_one_dimension_per_channel_is_the_tensor_itself() -> None:
    x = torch.tensor([-3.0, 2.0])
    assert absmax(x, PerChannel(0)).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_does_not_exist_is_named(axis: int) -> None:
    with pytest.raises(QuantError, match=f"axis {axis} does not exist in a tensor of 2"):
        low_high(torch.ones(2, 2), PerChannel(axis))


def test_an_empty_tensor_has_no_range() -> None:
    with pytest.raises(QuantError, match="empty"):
        low_high(torch.ones(0, 2), PerTensor())
