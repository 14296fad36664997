"""One tiny head, traced once and cut once, for all tests of graphs, passes, engines and the MTP export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import pytest

from export.graphs.mtp import MtpInputs
from export.graphs.trace import trace_module
from export.mtp.float_graph import build_float_graph

from .tiny import KEEP, WINDOW, TinyHead, tiny_head

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyHead:
    """A head of 4 layers, window 8, 300 tokens; nobody changes it."""
    return tiny_head(tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="session")
def traced(tiny: TinyHead) -> bytes:
    """The head as torch.onnx traces it; every user parses a copy of its own."""
    model = trace_module(tiny.head, MtpInputs(tiny.config, WINDOW).shapes(), ["next_hidden", "logits"])
    return ir.to_proto(model).SerializeToString()


@pytest.fixture(scope="session")
def float_onnx(tiny: TinyHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of the float step graph over `KEEP`."""
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    ir.save(build_float_graph(tiny.head, KEEP, WINDOW), path)
    return path
