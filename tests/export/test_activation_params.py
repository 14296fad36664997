"""Which parameters a range owner gets: given, fixed by arithmetic, or from observed ranges; closed forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from onnx import helper

from export.activation_params import activation_params, boundary_of, owners_of
from export.engines.graph_io import BoundaryTensor
from export.errors import ExportError
from export.passes import run_passes
from export.passes.tie_ranges import TieRanges
from quant.affine import AffineParams, dequantize, quantize
from quant.dtypes import INT8, INT16, UINT16, IntegerType

from .passes.builders import graph_of

if TYPE_CHECKING:
    import onnx_ir as ir

RANGES = {"scores": (-3.0, 5.0), "masked": (-2.0, 4.0), "keys": (-1.0, 2.0), "turned": (-1.5, 0.5), "y": (0.5, 6.0)}


def attention_like() -> ir.Model:
    """softmax(scores + mask_full) keys^T, tied."""
    nodes = [
        helper.make_node("Add", ["scores", "mask_full"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"]),
        helper.make_node("Transpose", ["keys"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["shares", "turned"], ["y"]),
        helper.make_node("Mul", ["y", "cos_full"], ["z"]),
    ]
    inputs = {"scores": [2, 3], "mask_full": [2, 3], "keys": [4, 3], "cos_full": [2, 4]}
    return run_passes(graph_of(nodes, inputs, {"z": [2, 4]}, {}), [TieRanges()])


def params(
    symmetric: dict[str, IntegerType] | None = None,
    given: dict[str, AffineParams] | None = None,
    **ranges: tuple[float, float],
) -> dict[str, AffineParams]:
    return activation_params(attention_like().graph, {**RANGES, "z": (-1.0, 1.0), **ranges}, symmetric, given)


def eight_bits(scale: float, zero_point: int = 0) -> AffineParams:
    return AffineParams(torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32), INT8)


def holds(found: AffineParams, low: float, high: float) -> None:
    """uint16 over [low, high]: 65,535 steps, the zero point at 0."""
    assert found.dtype == UINT16
    assert found.scale.item() == pytest.approx((high - low) / 65535, rel=1e-6)
    assert found.zero_point.item() == round(-low / found.scale.item())


def test_observed_ranges_are_widened_and_joined() -> None:
    found = params()
    holds(found["scores"], 1.25 * -3, 1.25 * 5)
    holds(found["keys"], 1.25 * -1.5, 1.25 * 2)  # its own and what the transpose shows
    holds(found["y"], 0.0, 1.25 * 6)  # zero must have a code
    assert "turned" not in found


def test_fixed_ranges_are_not_widened() -> None:
    found = params(shares=(0.1, 0.9))
    holds(found["shares"], 0.0, 1.0)
    holds(found["mask_full"], -100.0, 0.0)
    holds(found["cos_full"], -1.0, 1.0)


def test_scores_reach_down_to_the_mask() -> None:
    holds(params()["masked"], -100.0, 5.0)
    holds(params(masked=(-120.0, 4.0))["masked"], -150.0, 5.0)


@pytest.mark.parametrize("keys", [(-1.0, 2.0), (-3.0, 2.0)])
@pytest.mark.parametrize(("dtype", "largest"), [(INT8, 127), (INT16, 32767)])
def test_symmetric_owners(keys: tuple[float, float], dtype: IntegerType, largest: int) -> None:
    found = params({"keys": dtype}, keys=keys)["keys"]
    assert (found.dtype, found.zero_point.item()) == (dtype, 0)
    assert found.scale.item() == pytest.approx(1.25 * max(map(abs, keys)) / largest, rel=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("symmetric", [{"keys": INT8}, {"keys": INT16}, None])
def test_keys_that_are_all_zero(symmetric: dict[str, IntegerType] | None) -> None:
    """Case 3: a dead cache has a finite scale above 0, and zeros stay zeros."""
    found = params(symmetric, keys=(0.0, 0.0), turned=(0.0, 0.0))["keys"]
    assert np.isfinite(found.scale.item())
    assert found.scale.item() > 0
    codes = quantize(torch.zeros(4, 3), found)
    assert bool((codes == found.zero_point).all())
    assert not dequantize(codes, found).any()


@pytest.mark.parametrize("name", ["keys", "turned"])
def test_given_parameters_win_over_all(name: str) -> None:
    """Over observed ranges, a missing range and symmetry; any name of the group may give them."""
    given = eight_bits(0.125)
    assert params({"keys": INT16}, {name: given})["keys"] is given
    assert params(given={"shares": given})["shares"] is given
    graph = attention_like().graph
    few = {key: bounds for key, bounds in RANGES.items() if key not in ("keys", "turned")}
    assert activation_params(graph, {**few, "z": (0.0, 1.0)}, given={name: given})["keys"] is given


def test_equal_given_parameters_agree() -> None:
    assert params(given={"keys": eight_bits(0.125), "turned": eight_bits(0.125)})["keys"].scale.item() == 0.125


@pytest.mark.parametrize("other", [eight_bits(0.25), eight_bits(0.125, 1)])
def test_given_parameters_that_differ(other: AffineParams) -> None:
    with pytest.raises(ExportError, match=r"values tied to 'keys' are given different quantisation: .*0\.125"):
        params(given={"keys": eight_bits(0.125), "turned": other})


def test_a_missing_range() -> None:
    few = {key: bounds for key, bounds in RANGES.items() if key != "turned"}
    with pytest.raises(ExportError, match=r"the calibration has no range for \['turned'\]: calibrate this very graph"):
        activation_params(attention_like().graph, few)


def test_ranges_of_another_graph() -> None:
    with pytest.raises(ExportError, match=r"of another graph, this one has no \['queries', 'w'\]"):
        params(w=(0.0, 1.0), queries=(0.0, 1.0))


def test_the_boundary_takes_its_owners_parameters() -> None:
    graph = attention_like().graph
    owners = owners_of(graph)
    assert owners["turned"] == owners["keys"] == "keys"
    found = params(given={"turned": eight_bits(0.125)})
    boundary = boundary_of(graph, found, owners)
    assert [tensor.name for tensor in boundary.inputs] == ["scores", "mask_full", "keys", "cos_full"]
    assert boundary.inputs[2] == BoundaryTensor("keys", "int8", (4, 3), 0.125, 0)
    (output,) = boundary.outputs
    assert (output.name, output.dtype, output.shape) == ("z", "uint16", (2, 4))
    np.testing.assert_allclose(output.scale, 2.5 / 65535, rtol=1e-6)
