"""Code limits against numpy's and ml_dtypes' own type information."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from quant.dtypes import INT2, INT4, INT8, INT16, UINT8, UINT16, IntegerType


@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16, UINT16])
def test_limits_and_numpy_type_are_numpys(dtype: IntegerType) -> None:
    info = np.iinfo(dtype.name)
    assert (dtype.qmin, dtype.qmax, dtype.bits) == (info.min, info.max, info.bits)
    assert dtype.numpy_dtype == np.dtype(dtype.name)


@pytest.mark.parametrize(("dtype", "reference"), [(INT2, ml_dtypes.int2), (INT4, ml_dtypes.int4)])
def test_narrow_limits_are_those_of_ml_dtypes(dtype: IntegerType, reference: type) -> None:
    info = ml_dtypes.iinfo(reference)  # type: ignore[no-untyped-call]
    assert (dtype.qmin, dtype.qmax) == (info.min, info.max)
    assert dtype.numpy_dtype is None
