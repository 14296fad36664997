"""Clips become ranges: who carries them, what becomes a conversion, and numbers that saturate where numpy clips."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from onnx import helper

from export.errors import PassError
from export.passes import run_passes
from export.passes.common import name_of
from export.passes.fold_clips import FoldClips
from export.passes.quantize_activations import QuantizeActivations
from export.passes.tie_ranges import TieRanges, range_groups
from quant.affine import AffineParams, choose_asymmetric
from quant.dtypes import UINT16

from .builders import graph_of, nodes_of, random, run_ort, run_reference

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

BOUNDS = {"low": np.float32(-0.5), "high": np.float32(0.25)}
WIDER = {"lower": np.float32(-1.0), "higher": np.float32(1.0)}


def clip(source: str, output: str, low: str = "low", high: str = "high") -> onnx.NodeProto:
    return helper.make_node("Clip", [source, low, high], [output], name=f"clip_{output}")


def op(operator: str, sources: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, sources.split(), outputs.split(), name=f"node_{outputs}", **attributes)


def folded(
    nodes: list[onnx.NodeProto], outputs: dict[str, list[int]], **constants: np.ndarray
) -> tuple[ir.Model, dict[str, tuple[float, float]]]:
    """The graph over x [2, 6] without clips, and the ranges that stand for them."""
    model = graph_of(nodes, {"x": [2, 6]}, outputs, {**BOUNDS, **WIDER, **constants})
    clips = FoldClips()
    run_passes(model, [clips])
    assert not nodes_of(model, "Clip")
    return model, clips.bounds


def saturated(model: ir.Model, bounds: dict[str, tuple[float, float]], x: np.ndarray) -> dict[str, np.ndarray]:
    """All outputs of the quantised graph: 16 bits over the bounds, or over -8 to 8 where there are none."""
    run_passes(model, [TieRanges()])
    params: dict[str, AffineParams] = {}
    for owner, names in range_groups(model.graph).items():
        low, high = next((bounds[name] for name in names if name in bounds), (-8.0, 8.0))
        params[owner] = choose_asymmetric(torch.tensor(low), torch.tensor(high), UINT16)
    run_passes(model, [QuantizeActivations(params)])
    result = run_ort(model, {"x": x})
    for name, array in run_reference(model, {"x": x}).items():
        np.testing.assert_allclose(result[name], array, atol=1e-3)
    return {name.removesuffix(".dq"): array for name, array in result.items()}


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=6e-4)  # a few steps of 16 / 65535


X = 3 * random(2, 6)


def bounded(array: np.ndarray) -> np.ndarray:
    return np.clip(array, -0.5, 0.25)


def test_a_single_reader_folds() -> None:
    model, bounds = folded([op("Tanh", "x", "t"), clip("t", "c"), op("Neg", "c", "y")], {"y": [2, 6]})
    assert bounds == {"t": (-0.5, 0.25)}
    assert [node.op_type for node in model.graph] == ["Tanh", "Neg"]
    assert not {"low", "high"} & model.graph.initializers.keys()
    close(saturated(model, bounds, X)["y"], -bounded(np.tanh(X)))


def test_several_readers_convert() -> None:
    nodes = [op("Tanh", "x", "t"), clip("t", "c"), op("Neg", "c", "y"), op("Abs", "t", "z")]
    model, bounds = folded(nodes, {"y": [2, 6], "z": [2, 6]})
    (conversion,) = nodes_of(model, "Identity")
    assert [name_of(value) for value in conversion.inputs if value] == ["t"]
    assert bounds == {name_of(conversion.outputs[0]): (-0.5, 0.25)}
    result = saturated(model, bounds, X)
    close(result["y"], -bounded(np.tanh(X)))
    close(result["z"], np.abs(np.tanh(X)))


@pytest.mark.parametrize("output", [False, True], ids=["inside", "output"])
def test_a_source_that_is_seen_elsewhere_converts(output: bool) -> None:
    """A graph input, and a value that is itself a graph output, keep their own ranges."""
    nodes = [op("Tanh", "x", "t"), clip("t", "c"), op("Neg", "c", "y")] if output else [clip("x", "c")]
    nodes += [] if output else [op("Neg", "c", "y")]
    model, bounds = folded(nodes, {"y": [2, 6], **({"t": [2, 6]} if output else {})})
    assert len(nodes_of(model, "Identity")) == 1
    result = saturated(model, bounds, X)
    close(result["y"], -bounded(np.tanh(X) if output else X))
    if output:
        close(result["t"], np.tanh(X))


def test_equal_clips_of_one_source_are_one() -> None:
    """Projections that read the same values; with both clips gone the source has no other reader."""
    nodes = [op("Tanh", "x", "t"), clip("t", "c"), clip("t", "d"), op("Neg", "c", "y"), op("Abs", "d", "z")]
    model, bounds = folded(nodes, {"y": [2, 6], "z": [2, 6]})
    assert bounds == {"t": (-0.5, 0.25)}
    assert not nodes_of(model, "Identity")
    result = saturated(model, bounds, X)
    close(result["y"], -bounded(np.tanh(X)))
    close(result["z"], np.abs(bounded(np.tanh(X))))


def test_different_clips_of_one_source_convert_twice() -> None:
    nodes = [op("Tanh", "x", "t"), clip("t", "c"), clip("t", "d", high="higher"), op("Neg", "c", "y")]
    model, bounds = folded([*nodes, op("Abs", "d", "z")], {"y": [2, 6], "z": [2, 6]})
    assert len(nodes_of(model, "Identity")) == 2
    assert sorted(bounds.values()) == [(-0.5, 0.25), (-0.5, 1.0)]
    result = saturated(model, bounds, X)
    close(result["y"], -bounded(np.tanh(X)))
    close(result["z"], np.abs(np.clip(np.tanh(X), -0.5, 1.0)))


@pytest.mark.parametrize("first", ["low", "lower"])
def test_a_clip_of_a_clip(first: str) -> None:
    """The output of one linear layer is the input of the next: both bounds hold."""
    pairs = {"low": ("low", "high"), "lower": ("lower", "higher")}
    second = "lower" if first == "low" else "low"
    nodes = [op("Tanh", "x", "t"), clip("t", "c", *pairs[first]), clip("c", "d", *pairs[second]), op("Neg", "d", "y")]
    model, bounds = folded(nodes, {"y": [2, 6]})
    assert len(nodes_of(model, "Identity")) == 1
    close(saturated(model, bounds, X)["y"], -bounded(np.tanh(X)))


def test_behind_moves_the_maker_carries_the_range() -> None:
    nodes = [
        op("Tanh", "x", "t"),
        op("Reshape", "t shape", "flat"),
        op("Transpose", "flat", "turned", perm=[1, 0]),
        clip("turned", "c"),
        op("Neg", "c", "y"),
    ]
    model, bounds = folded(nodes, {"y": [4, 3]}, shape=np.array([3, 4]))
    assert bounds == {"t": (-0.5, 0.25)}
    assert not nodes_of(model, "Identity")
    close(saturated(model, bounds, X)["y"], -bounded(np.tanh(X)).reshape(3, 4).T)


def test_moves_with_a_reader_between_do_not_fold() -> None:
    nodes = [op("Tanh", "x", "t"), op("Reshape", "t shape", "flat"), clip("flat", "c"), op("Neg", "c", "y")]
    nodes += [op("Abs", "t", "z")]
    model, bounds = folded(nodes, {"y": [3, 4], "z": [2, 6]}, shape=np.array([3, 4]))
    assert len(nodes_of(model, "Identity")) == 1
    result = saturated(model, bounds, X)
    close(result["y"], -bounded(np.tanh(X)).reshape(3, 4))
    close(result["z"], np.abs(np.tanh(X)))


MOVES = {
    "Split": ([op("Split", "t", "a b", axis=1, num_outputs=2)], "a", lambda t: t[:, :3]),
    "Concat": ([op("Concat", "t x", "a", axis=0)], "a", lambda t: np.concatenate([t, X])),
    "Slice": ([op("Slice", "t begin end", "a")], "a", lambda t: t[:1]),
    "Unsqueeze": ([op("Unsqueeze", "t begin", "a")], "a", lambda t: t[None]),
    "Expand": ([op("Expand", "t three", "a")], "a", lambda t: np.broadcast_to(t, (3, 2, 6))),
}


@pytest.mark.parametrize("move", sorted(MOVES))
def test_other_moves_do_not_fold(move: str) -> None:
    """What goes in is read elsewhere too, or in part, or by others' side: its range is not the clip's."""
    nodes, source, moved = MOVES[move]
    wanted = moved(np.tanh(X))
    nodes = [op("Tanh", "x", "t"), *nodes, clip(source, "c"), op("Neg", "c", "y"), op("Abs", "t", "z")]
    constants = {"begin": np.array([0]), "end": np.array([1]), "three": np.array([3, 1, 1])}
    model, bounds = folded(nodes, {"y": list(wanted.shape), "z": [2, 6]}, **constants)
    assert len(nodes_of(model, "Identity")) == 1
    result = saturated(model, bounds, X)
    close(result["y"], -bounded(wanted))
    close(result["z"], np.abs(np.tanh(X)))


@pytest.mark.parametrize("readers", [1, 2])
def test_a_clip_at_an_output_leaves_the_outputs_name(readers: int) -> None:
    nodes = [op("Tanh", "x", "t"), clip("t", "logits")] + [op("Abs", "t", "z")] * (readers - 1)
    model, bounds = folded(nodes, {"logits": [2, 6], **({"z": [2, 6]} if readers == 2 else {})})
    assert model.graph.outputs[0].name == "logits"
    assert bounds == {"logits": (-0.5, 0.25)}
    close(saturated(model, bounds, X)["logits"], bounded(np.tanh(X)))


@pytest.mark.parametrize("output", ["c", "d"])
def test_equal_clips_of_which_one_is_an_output(output: str) -> None:
    inside = "d" if output == "c" else "c"
    nodes = [op("Tanh", "x", "t"), clip("t", "c"), clip("t", "d"), op("Neg", inside, "y")]
    model, bounds = folded(nodes, {output: [2, 6], "y": [2, 6]})
    result = saturated(model, bounds, X)
    close(result[output], bounded(np.tanh(X)))
    close(result["y"], -bounded(np.tanh(X)))


def test_bounds_must_be_constants() -> None:
    model = graph_of([clip("x", "y", low="floor")], {"x": [2], "floor": []}, {"y": [2]}, {**BOUNDS})
    with pytest.raises(PassError, match="FoldClips failed: clip_y has bounds that are not constants"):
        run_passes(model, [FoldClips()])
    one_sided = graph_of([helper.make_node("Clip", ["x", "low"], ["y"], name="half")], {"x": [2]}, {"y": [2]}, BOUNDS)
    with pytest.raises(PassError, match="half has bounds that are not constants"):
        run_passes(one_sided, [FoldClips()])


def test_nothing_to_fold() -> None:
    model, bounds = folded([op("Tanh", "x", "y")], {"y": [2, 6]})
    assert bounds == {}
    assert not FoldClips()(model).modified
