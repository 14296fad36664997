"""The graphs that a drafting round runs on the phone, with what a tool that is not our runner must know of them.

A bundle's binary may hold several graphs under names that the compiler gave them; `context` (the EPContext model) says
which of them is the manifest's. This module reads files of the host alone and reaches no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from export.bundle.onnx_files import read_skeleton
from export.errors import BundleError
from export.estimate.round import PASSES
from export.hashing import sha256_file
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from export.bundle import Bundle, GraphInfo, TargetStatus


@dataclass(frozen=True)
class PhoneGraph:
    """A graph for the phone.

    passes: how often a drafting round runs it. binary: its compiled file, whose hash is checked. qnn_name: the graph's
    name in there; shared: whether other graphs lie in it too. target: the chip that it was compiled for.
    """

    bundle: Bundle
    info: GraphInfo
    passes: int
    binary: Path
    binary_sha256: str
    qnn_name: str
    shared: bool
    target: TargetStatus

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.bundle.manifest.kind} graph {self.info.name!r}"


def phone_graphs(bundles: Sequence[Bundle]) -> tuple[PhoneGraph, ...]:
    """The drafting graph of each bundle: the head's step, then the SLM's draft pass.

    Raises:
        UsageError: no bundle, or two of one kind.
        BundleError: a bundle that is not compiled, or whose binary is not the one of its manifest.
    """
    kinds = [bundle.manifest.kind for bundle in bundles]
    if not kinds or len(set(kinds)) != len(kinds):
        raise UsageError(f"bundles of the kinds {kinds} were given: give the head's, the SLM's, or one of each")
    return tuple(_phone_graph(bundle) for bundle in sorted(bundles, key=lambda one: list(PASSES).index(_kind(one))))


def _kind(bundle: Bundle) -> str:
    return bundle.manifest.kind


def _phone_graph(bundle: Bundle) -> PhoneGraph:
    info = drafting_graph(bundle)
    for role in ("context", "binary"):
        if role not in info.files:
            raise BundleError(
                f"bundle {bundle.folder}: graph {info.name!r} has no {role!r} file, so no phone can run it: export it "
                "where the HTP compiler runs (x86-64 Linux with onnxruntime-qnn)"
            )
    binary = info.files["binary"]
    _require_listed(bundle, info.files["context"])
    return PhoneGraph(
        bundle=bundle,
        info=info,
        passes=PASSES[bundle.manifest.kind],
        binary=bundle.path(binary),
        binary_sha256=_require_listed(bundle, binary),
        qnn_name=_qnn_name(bundle.path(info.files["context"]), bundle.path(binary).name),
        shared=sum(graph.files.get("binary") == binary for graph in bundle.manifest.graphs) > 1,
        target=_target(bundle),
    )


def drafting_graph(bundle: Bundle) -> GraphInfo:
    """The graph that drafts: the SLM's manifest names it, of a head's graphs it is the one of the fewest rows."""
    manifest = bundle.manifest
    if manifest.slm is not None:
        return bundle.graph(manifest.slm.draft_graph)
    if not manifest.graphs:
        raise BundleError(f"bundle {bundle.folder} has no graph")
    return min(manifest.graphs, key=lambda graph: graph.rows)


def _require_listed(bundle: Bundle, relative: str) -> str:
    """The hash of a file, which must be the manifest's."""
    path = bundle.path(relative)
    stated = next((info for info in bundle.manifest.files if info.path == relative), None)
    if stated is None or not path.is_file():
        raise BundleError(f"bundle {bundle.folder} lacks {relative}: copy the whole folder again or export it again")
    found = sha256_file(path)
    if found != stated.sha256:
        raise BundleError(
            f"bundle {bundle.folder} is damaged: {relative} has sha256 {found}, the manifest says {stated.sha256}; "
            "copy the whole folder again or export it again"
        )
    return found


def _target(bundle: Bundle) -> TargetStatus:
    compiled = [status for status in bundle.manifest.targets if status.compiled]
    if len(compiled) != 1:
        names = ", ".join(status.target for status in compiled) or "no chip"
        raise BundleError(f"bundle {bundle.folder} is compiled for {names}; one chip is needed to name its binary's")
    return compiled[0]


def _qnn_name(context: Path, binary_name: str) -> str:
    """The name of the graph in its binary, which is the name of ONNX Runtime's partition."""
    nodes = [node for node in read_skeleton(context).graph.node if node.op_type == "EPContext"]
    if len(nodes) != 1:
        raise BundleError(f"{context} has {len(nodes)} EPContext nodes where one is expected: export again")
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in nodes[0].attribute}
    named = _text(attributes.get("ep_cache_context"))
    if named != binary_name:
        raise BundleError(f"{context} names the binary {named!r}, the manifest {binary_name!r}: export again")
    name = _text(attributes.get("partition_name")) or nodes[0].name
    if not name:
        raise BundleError(f"{context} does not name its graph in {binary_name}: export again")
    return name


def _text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""
