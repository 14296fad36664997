"""Estimates for all graphs of some bundles, and their sum over one drafting round.

Bundles are only read: compiling happens in scratch folders that are gone afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from export.bundle.reader import require_intact
from export.errors import BundleError
from export.estimate.graph import EstimateOptions, GraphEstimate, graph_estimate, label_of
from export.estimate.proxy import compile_for_proxy, require_estimator
from export.estimate.round import Round, drafting_round
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from export.bundle.reader import Bundle


@dataclass(frozen=True)
class Estimate:
    """All graphs in the order of the bundles, the round, and what the figures rest on."""

    graphs: tuple[GraphEstimate, ...]
    round: Round
    qnn_version: str
    options: EstimateOptions

    @property
    def label(self) -> str:
        """What every figure is to be called."""
        return label_of(self.options.scale)

    @property
    def unreliable(self) -> bool:
        """Whether the compiler knows no cost for some operation, so that its figures are too low."""
        return any(graph.missing_costs for graph in self.graphs)


def estimate_bundles(bundles: Sequence[Bundle], options: EstimateOptions, progress: Callable[[str], None]) -> Estimate:
    """Compile every graph of the bundles for the proxy chip and add up one drafting round.

    Raises:
        UsageError: no bundle, or two of one kind: a round has one chain and one tree pass.
        BundleError: a damaged bundle, one without graphs, a graph without its QDQ file.
        CompileError: no compiler here, a refused graph, a QNN that is too old, a profile that cannot be read.
    """
    _require_one_of_each(bundles)
    require_estimator()
    for bundle in bundles:
        require_intact(bundle)
    jobs = [(bundle, graph) for bundle in bundles for graph in bundle.manifest.graphs]
    graphs, qnn_version = [], ""
    for bundle, graph in jobs:
        slm = bundle.manifest.slm
        progress(f"{graph.name}: compiling for the proxy chip")
        with TemporaryDirectory() as scratch:
            qdq, two_bit = bundle.graph_file(graph.name, "qdq"), slm is not None and slm.two_bit == "native"
            compiled = compile_for_proxy(qdq, Path(scratch), two_bit=two_bit)
        qnn_version = compiled.qnn_version
        graphs.append(graph_estimate(graph, bundle.manifest.kind, compiled, options))
    return Estimate(tuple(graphs), drafting_round(graphs), qnn_version, options)


def _require_one_of_each(bundles: Sequence[Bundle]) -> None:
    if not bundles:
        raise UsageError("no bundle to estimate; name one or two")
    of_kind: dict[str, Bundle] = {}
    for bundle in bundles:
        kind = bundle.manifest.kind
        if kind in of_kind:
            raise UsageError(
                f"{of_kind[kind].folder} and {bundle.folder} are both of kind {kind!r}; a drafting round has one: "
                "estimate them apart"
            )
        if not bundle.manifest.graphs:
            raise BundleError(f"bundle {bundle.folder} has no graphs: export it again")
        of_kind[kind] = bundle
