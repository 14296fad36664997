"""Drafters out of bundles: quantised graphs on ONNX Runtime's CPU provider or the HTP simulator, with their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.keepset import KeepSet
from export.errors import BundleError
from export.graphs.feeds import FeedBuilder
from export.mtp.chain import MtpChain
from export.mtp.check import head_config, open_cpu, open_simulator
from export.slm.check import open_graph, slm_config, slm_info
from export.slm.runner import SlmModel, SlmTables
from quant.packed_table import PackedTable
from quant.table import EmbeddingTable

if TYPE_CHECKING:
    import numpy as np

    from export.bundle.reader import Bundle
    from export.engines.cpu import QuantizedGraph


def keep_set_of(bundle: Bundle) -> KeepSet:
    """The bundle's keep set; raises KeepSetError where the map is not the one that its graphs were made for."""
    info = bundle.manifest.keep_set
    return KeepSet.load(bundle.path(info.file), info.vocab_size, (), expected_sha256=info.sha256)


def open_chain(bundle: Bundle) -> MtpChain:
    """The head's drafting chain: its keep set, its table, its window. Raises BundleError for a bundle without table."""
    keep = keep_set_of(bundle)
    if bundle.manifest.table is None:
        raise BundleError(f"bundle {bundle.folder} has no embedding table; export it again without --no-table")
    table = EmbeddingTable.load(bundle.path(bundle.manifest.table.file))
    feeds = FeedBuilder(head_config(bundle), bundle.manifest.window, bundle.manifest.position_rule)
    return MtpChain(feeds, keep.token_ids, lambda token_id: table.lookup(token_id).numpy())


def open_head(bundle: Bundle, *, simulator: bool) -> QuantizedGraph:
    """The head's step graph."""
    return open_simulator(bundle) if simulator else open_cpu(bundle)


def open_slm(bundle: Bundle, *, simulator: bool) -> tuple[SlmModel, np.ndarray]:
    """The SLM and its kept token ids; prefill always runs on the CPU, where it is faster than simulated."""
    manifest, slm = bundle.manifest, slm_info(bundle)
    model = SlmModel(
        slm_config(bundle),
        open_tables(bundle),
        open_graph(bundle, slm.draft_graph, simulator),
        bundle.graph(slm.draft_graph).rows,
        open_graph(bundle, slm.prefill_graph, simulator=False),
        bundle.graph(slm.prefill_graph).rows,
        manifest.window,
        "int8",
    )
    return model, keep_set_of(bundle).token_ids


def open_tables(bundle: Bundle) -> SlmTables:
    """The SLM's two tables, memory-mapped. Raises BundleError where the bundle has none."""
    found = (bundle.manifest.table, bundle.manifest.per_layer_table)
    files = [bundle.path(table.file) for table in found if table is not None]
    if len(files) != len(found):
        raise BundleError(f"bundle {bundle.folder} has no embedding tables; export it again without --no-table")
    return SlmTables(*(PackedTable.load(file) for file in files))
