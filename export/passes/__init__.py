"""Graph surgery as a list of onnx_ir passes, one a file, each with its pre- and postconditions.

A pass raises PassError with the reason and the nodes; `run_passes` names the pass that failed.
"""

from export.passes.runner import run_passes

__all__ = ["run_passes"]
