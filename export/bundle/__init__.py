"""The bundle: one folder with graphs, tables, keep set, tokenizer and the manifest that vouches for them."""

from __future__ import annotations

from export.bundle.aihub import METADATA_NAME, metadata_yaml
from export.bundle.compatibility import KeepSetIdentity, RuntimeTarget, require_keep_set, require_target
from export.bundle.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    CalibrationInfo,
    FileInfo,
    GraphInfo,
    KeepSetInfo,
    Manifest,
    SourceInfo,
    TableInfo,
    TargetStatus,
    TensorInfo,
)
from export.bundle.reader import Bundle, FileProblem, open_bundle, require_intact, verify_files
from export.bundle.writer import BundleWriter

__all__ = [
    "MANIFEST_NAME",
    "METADATA_NAME",
    "SCHEMA_VERSION",
    "Bundle",
    "BundleWriter",
    "CalibrationInfo",
    "FileInfo",
    "FileProblem",
    "GraphInfo",
    "KeepSetIdentity",
    "KeepSetInfo",
    "Manifest",
    "RuntimeTarget",
    "SourceInfo",
    "TableInfo",
    "TargetStatus",
    "TensorInfo",
    "metadata_yaml",
    "open_bundle",
    "require_intact",
    "require_keep_set",
    "require_target",
    "verify_files",
]
