"""A text in the making on any engine: tables, the KV window, and passes of the prefill and the draft graph over them.

Keys and values stay as the engine has them, floats or 8-bit codes: the window moves them and reads none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from export.engines.graph_io import joined_logits
from export.graphs.slm import cache_shapes
from export.graphs.tree_feeds import RowTree, TreeFeedBuilder
from export.kv_window import KvRows, KvWindow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from export.checkpoint.slm import SlmConfig
    from export.engines.graph_io import Boundary, Feed
    from quant.packed_table import PackedTable


class PassGraph(Protocol):
    """Runs one pass: named inputs (all floats but for caches) to `logits_*` as floats and `new_*` as the cache has it.

    `inputs` are the names that it takes; a prefill graph takes fewer than a draft graph.
    """

    inputs: tuple[str, ...]

    def run(self, feed: Feed) -> Feed:
        """One pass."""
        ...


class CodedGraph:
    """A QDQ graph, on any session, whose caches come and go as 8-bit codes."""

    def __init__(self, session: Any, boundary: Boundary) -> None:
        self._session, self._boundary = session, boundary
        self._names = [tensor.name for tensor in boundary.outputs]
        self.inputs = tuple(tensor.name for tensor in boundary.inputs)

    def run(self, feed: Feed) -> Feed:
        codes = {
            t.name: feed[t.name] if t.name.startswith("past_") else t.encode(feed[t.name])
            for t in self._boundary.inputs
        }
        outputs = zip(self._boundary.outputs, self._session.run(self._names, codes), strict=True)
        return {t.name: array if t.name.startswith("new_") else t.decode(array) for t, array in outputs}


@dataclass(frozen=True)
class SlmTables:
    """The CPU's two tables: token embeddings and per-layer embeddings."""

    tokens: PackedTable
    per_layer: PackedTable

    def rows(self, token_ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings [n, hidden] and per-layer rows [n, layers * width] as the graph takes them.

        Raises QuantError naming an id that a table lacks.
        """
        ids = np.asarray(token_ids, np.int64)
        return self.tokens.lookup(ids), self.per_layer.lookup(ids)


@dataclass(frozen=True)
class SlmModel:
    """What all texts share: dimensions, tables, graphs with their rows, the window and the type of its numbers."""

    config: SlmConfig
    tables: SlmTables
    draft: PassGraph
    draft_rows: int
    prefill: PassGraph
    prefill_rows: int
    window: int
    cache_dtype: str

    def begin(self) -> SlmText:
        """An empty text."""
        return SlmText(self)


class SlmText:
    """One text: `cache` holds its keys and values, drafted rows included until `cache.accept` or `roll_back`."""

    def __init__(self, model: SlmModel) -> None:
        self._model = model
        self.cache = KvWindow(cache_shapes(model.config), model.window, np.dtype(model.cache_dtype))

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Append accepted tokens, as many at a time as the prefill graph has rows."""
        model = self._model
        for start in range(0, len(token_ids), model.prefill_rows):
            chunk = token_ids[start : start + model.prefill_rows]
            self._run(model.prefill, model.prefill_rows, RowTree.chain(len(chunk)), chunk)
            self.cache.accept(range(len(chunk)))

    def draft(self, tree: RowTree, token_ids: Sequence[int]) -> np.ndarray:
        """Raw logits [run, kept tokens] of the tree's rows that are not yet stored; the rows join the cache's draft.

        `token_ids` are those of the rows that run, in order.
        """
        result = self._run(self._model.draft, self._model.draft_rows, tree, token_ids)
        logits: np.ndarray = joined_logits(result)[0, 0, : tree.run]
        return logits

    def _run(self, graph: PassGraph, rows: int, tree: RowTree, token_ids: Sequence[int]) -> Feed:
        builder = TreeFeedBuilder(self._model.config, rows, self._model.window)
        whole = builder.feed(tree, *self._model.tables.rows(token_ids), self.cache.view())
        result = graph.run({name: whole[name] for name in graph.inputs})
        self.cache.append(new_rows(result), tree.positions(self.cache.next_position).tolist())
        return result


def new_rows(result: Mapping[str, np.ndarray]) -> dict[int, KvRows]:
    """A pass's keys and values by the layer that owns them."""
    owners = [int(name.rsplit("_", 1)[1]) for name in result if name.startswith("new_keys_")]
    return {owner: KvRows(result[f"new_keys_{owner}"], result[f"new_values_{owner}"]) for owner in owners}
