"""Compile a graph for a chip that QNN has a cost model for, and read what the compiler expects of it.

The phones' chips (soc_model 87, 69, 57) give no estimate. soc_model 72 is another chip of the same architecture as
SM8850's (V81): a proxy, not a phone. The figures also depend on the QNN version: for one and the same MTP graph 2.51
says 2.2 to 2.4 ms, 2.49 says 7 to 46 million cycles and no time. So older ones are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.bundle.compatibility import parse_version
from export.engines.htp import Target, compile_graph, why_unavailable
from export.errors import CompileError
from export.estimate.profile import Profile, read_profile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROXY = Target("proxy chip", 72, 81, "none: a chip that QNN has a cost model for")
VTCM_MB = 8
OLDEST_QNN = (2, 51, 0)


@dataclass(frozen=True)
class ProxyCompile:
    """The compiler's profile of a graph, the size of the binary it made, and the QNN that made both."""

    profile: Profile
    binary_bytes: int
    qnn_version: str


def require_estimator() -> None:
    """Raise CompileError where this host has no compiler to ask."""
    reason = why_unavailable()
    if reason:
        raise CompileError(f"cannot estimate: the estimate is the HTP compiler's, and {reason}")


def compile_for_proxy(
    qdq: Path, scratch: Path, options: Mapping[str, str] | None = None, *, two_bit: bool = False
) -> ProxyCompile:
    """Compile the QDQ model at `qdq` inside the empty folder `scratch`; `options` are the QNN provider's, over ours.

    `two_bit` as for `compile_graph`: the estimate must be of the graph that is shipped.

    Raises:
        CompileError: no compiler, a graph it refuses, a QNN older than 2.51, a profile that cannot be read.
    """
    csv = scratch / "profile.csv"
    ours = {"vtcm_mb": str(VTCM_MB), "profiling_level": "detailed", "profiling_file_path": str(csv)}
    compiled = compile_graph(qdq, scratch / "proxy.onnx", PROXY, {**ours, **(options or {})}, two_bit=two_bit)
    require_qnn(compiled.qnn_version)
    return ProxyCompile(read_profile(csv), compiled.binary.stat().st_size, compiled.qnn_version)


def require_qnn(version: str) -> None:
    """Raise CompileError for a QNN whose estimates cannot be used."""
    if parse_version(version) < OLDEST_QNN:
        raise CompileError(
            f"cannot estimate with QNN {version}: before 2.51 its estimates are several times off and lack the time; "
            "install onnxruntime-qnn 2.7.0 or newer"
        )
