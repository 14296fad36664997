"""The errors of `export`.

HycoError                 the work failed (exit code 1)
└── ExportError
    ├── CheckpointError   a checkpoint's file, tensor or configuration is absent, damaged or not what it says
    ├── BundleError       a bundle cannot be written, or is not what its manifest says
    ├── PassError         a graph pass met a graph it cannot change
    └── CompileError      a compiler refused the graph, or put a node off the NPU
"""

from __future__ import annotations

from quant.errors import HycoError


class ExportError(HycoError):
    """Something between checkpoint and bundle failed."""


class CheckpointError(ExportError):
    """A checkpoint cannot be read; the message names the file, and the tensor where one is concerned."""


class BundleError(ExportError):
    """A bundle cannot be written, or does not agree with its manifest."""


class PassError(ExportError):
    """A graph pass met a graph that breaks its pre- or postcondition."""


class CompileError(ExportError):
    """A compiler refused a graph, or would run part of it off the NPU."""
