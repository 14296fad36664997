"""Who made a bundle, and from what."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from export.bundle import describe
from export.bundle.describe import source_info, tool_versions
from export.checkpoint.reader import CheckpointReader
from export.checkpoint.source import CheckpointSource

if TYPE_CHECKING:
    from pathlib import Path


def test_versions_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_qnn(package: str) -> str:
        if package == "onnxruntime-qnn":
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(describe, "version", without_qnn)
    found = tool_versions()
    assert found.keys() == {"hyco-npu", "torch", "transformers", "onnx", "onnx_ir", "onnxruntime"}
    assert found["torch"] == torch.__version__


@pytest.mark.parametrize(("revision", "origin"), [(None, "model"), ("f" * 40, "org/model")])
def test_a_folder_is_named_without_its_path(tmp_path: Path, revision: str | None, origin: str) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    reader = CheckpointReader(tmp_path)
    info = source_info(CheckpointSource(tmp_path, "org/model", revision), reader, {"width": 2})
    assert (info.origin, info.revision, info.sha256, info.config) == (origin, revision, reader.sha256, {"width": 2})
