"""The runner names the pass that failed and keeps its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes import run_passes

from .builders import linear_graph, random

if TYPE_CHECKING:
    import onnx_ir as ir


class Broken(InPlacePass):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def requires(self, model: ir.Model) -> None:
        self._fail("requires", model)

    def call(self, model: ir.Model) -> PassResult:
        self._fail("call", model)
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        self._fail("ensures", model)

    def _fail(self, where: str, model: ir.Model) -> None:
        if where == self.where:
            raise PassError(f"node {model.graph[0].name} is wrong in {where}")


class Rename(InPlacePass):
    def call(self, model: ir.Model) -> PassResult:
        model.graph.name = f"{model.graph.name}!"
        return PassResult(model, modified=True)


@pytest.mark.parametrize("where", ["requires", "call", "ensures"])
def test_failure_names_pass_reason_and_node(where: str) -> None:
    with pytest.raises(PassError, match=rf"graph pass Broken failed: node linear is wrong in {where}"):
        run_passes(linear_graph(random(4, 4)), [Rename(), Broken(where)])


def test_passes_run_in_order_and_later_ones_not_after_a_failure() -> None:
    model = linear_graph(random(4, 4))
    assert run_passes(model, [Rename(), Rename()]).graph.name == "g!!"
    with pytest.raises(PassError):
        run_passes(model, [Broken("call"), Rename()])
    assert model.graph.name == "g!!"
