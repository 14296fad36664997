"""Two graphs over one file of weights: bytes on disk, and both run by ONNX Runtime wherever the folder is moved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper

from export.engines.cpu import FloatGraph
from export.errors import ExportError
from export.slm.save import save_sharing_weights

from .passes.builders import graph_of, random

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

A, B, SMALL = random(64, 64), random(64, 32, seed=1), random(8, seed=2)


def draft_model() -> ir.Model:
    """logits = (x a) b, with a small constant on the way."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["y"]),
        helper.make_node("MatMul", ["y", "b"], ["z"]),
        helper.make_node("Mul", ["z", "small"], ["logits"]),
    ]
    return graph_of(nodes, {"x": [4, 64]}, {"logits": [4, 32]}, {"a": A, "b": B, "small": SMALL[:1]})


def prefill_model(**constants: np.ndarray) -> ir.Model:
    """y = x a + small, of more rows and with another small constant of the same name."""
    nodes = [helper.make_node("MatMul", ["x", "a"], ["p"]), helper.make_node("Add", ["p", "small"], ["y"])]
    return graph_of(nodes, {"x": [16, 64]}, {"y": [16, 64]}, {"a": A, "small": SMALL[1:2], **constants})


def save(folder: Path, prefill: ir.Model) -> None:
    folder.mkdir()
    save_sharing_weights({folder / "draft.onnx": draft_model(), folder / "prefill.onnx": prefill}, "both.weights")


def test_weights_lie_on_disk_once_and_move_with_the_folder(tmp_path: Path) -> None:
    save(tmp_path / "made", prefill_model())
    (tmp_path / "made").rename(moved := tmp_path / "moved")
    assert sorted(path.name for path in moved.iterdir()) == ["both.weights", "draft.onnx", "prefill.onnx"]
    assert (moved / "both.weights").stat().st_size == A.nbytes + B.nbytes
    assert max((moved / name).stat().st_size for name in ("draft.onnx", "prefill.onnx")) < 1024
    few, many = random(4, 64, seed=3), random(16, 64, seed=4)
    logits = FloatGraph(moved / "draft.onnx").run({"x": few})["logits"]
    np.testing.assert_allclose(logits, few @ A @ B * SMALL[0], rtol=1e-4, atol=1e-3)
    y = FloatGraph(moved / "prefill.onnx").run({"x": many})["y"]
    np.testing.assert_allclose(y, many @ A + SMALL[1], rtol=1e-4, atol=1e-4)


def test_the_first_model_keeps_its_own_numbers(tmp_path: Path) -> None:
    draft = draft_model()
    save_sharing_weights({tmp_path / "draft.onnx": draft}, "w")
    (tmp_path / "w").unlink()
    weight = draft.graph.initializers["a"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), A)


def another_name() -> ir.Model:
    model = prefill_model(c=A)
    product = model.graph[0]
    product.replace_input_with(1, model.graph.initializers["c"])
    return model


@pytest.mark.parametrize(
    ("prefill", "weight"),
    [
        (lambda: prefill_model(b=B.T.copy()), "b"),
        (lambda: prefill_model(b=B.astype(np.int32)), "b"),
        (another_name, "c"),
    ],
    ids=["shape", "type", "name"],
)
def test_weights_that_differ(tmp_path: Path, prefill: object, weight: str) -> None:
    assert callable(prefill)
    with pytest.raises(ExportError, match=re.escape(f"weight {weight!r} is not the same in draft.onnx and prefill")):
        save(tmp_path / "made", prefill())
