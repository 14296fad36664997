"""Parts of a manifest that every export writes in the same way."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from export.bundle.manifest import SourceInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from export.checkpoint.reader import CheckpointReader
    from export.checkpoint.source import CheckpointSource

_PACKAGES = ("hyco-npu", "torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "onnxruntime-qnn")


def tool_versions() -> dict[str, str]:
    """Versions of the packages that decide what an export makes, as far as they are installed."""
    return {name: found for name in _PACKAGES if (found := _version(name))}


def source_info(source: CheckpointSource, reader: CheckpointReader, config: Mapping[str, object]) -> SourceInfo:
    """A checkpoint's entry: folder name or Hugging Face id, revision, hash, dimensions."""
    origin = Path(source.origin).name if source.revision is None else source.origin
    return SourceInfo(origin=origin, revision=source.revision, sha256=reader.sha256, config=dict(config))  # type: ignore[arg-type]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
