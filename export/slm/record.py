"""Record held-out passes while an export runs: first the float graphs, then transformers, last the 8-bit caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from export.graphs.tree_feeds import RowTree
from export.slm.reference import TransformersSlm
from export.slm.runner import SlmModel, SlmTables
from export.slm.samples import (
    BOUNDED,
    FP32,
    PREFILL,
    TRANSFORMERS,
    Outputs,
    PassRunner,
    SlmSamples,
    TreeSample,
    tree_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from export.checkpoint.slm import SlmCheckpoint
    from export.slm.options import SlmExportOptions
    from export.slm.reference import Activations
    from export.slm.runner import PassGraph
    from export.slm.sources import HeldOut


class Recorder:
    """Collects the trees of held-out rounds and what each reference says of them."""

    def __init__(
        self, checkpoint: SlmCheckpoint, tables: SlmTables, keep: np.ndarray, options: SlmExportOptions
    ) -> None:
        self._checkpoint, self._tables, self._keep, self._options = checkpoint, tables, keep, options
        self._rounds: list[tuple[HeldOut, RowTree, list[int]]] = []
        self.references: dict[str, Outputs] = {}

    def run_floats(self, draft: PassGraph, prefill: PassGraph, rounds: Sequence[HeldOut]) -> None:
        """Run every round with the float graphs; the trees are made here."""
        rng = np.random.default_rng(self._options.seed)
        for one in rounds:
            self._rounds.append((one, *tree_of(one, rng, self._keep, self._options.rows)))
        trees = self._samples(prefill, "float32")
        config, window = self._checkpoint.config, self._options.window
        self.references[FP32] = PassRunner(config, draft, self._options.rows, window, None).run(trees)
        filling = PassRunner(config, prefill, self._options.prefill_rows, window, None)
        self.references[f"{PREFILL}_{FP32}"] = filling.run([self._prefill_piece()])

    def run_transformers(self) -> None:
        """Run transformers' own model over every path of every tree, as it is and under the graphs' bounds."""
        model = TransformersSlm(self._checkpoint)
        runs: dict[str, Activations] = {
            BOUNDED: "clipped" if self._options.activation_clip else "free",
            TRANSFORMERS: "rounded",
        }
        for name, how in runs.items():
            logits = [
                model.tree_logits(one.text[: one.position], tree, tokens, self._keep, how)
                for one, tree, tokens in self._rounds
            ]
            self.references[name] = {"logits": np.concatenate(logits)}

    def samples(self, prefill: PassGraph) -> SlmSamples:
        """The rounds with the 8-bit caches that the quantised prefill graph fills, and all references."""
        return SlmSamples(self._samples(prefill, "int8"), self._prefill_piece(), self.references)

    def _samples(self, prefill: PassGraph, dtype: str) -> list[TreeSample]:
        options, samples = self._options, []
        model = SlmModel(
            self._checkpoint.config,
            self._tables,
            prefill,
            options.prefill_rows,
            prefill,
            options.prefill_rows,
            options.window,
            dtype,
        )
        for one, tree, tokens in self._rounds:
            session = model.begin()
            session.prefill(one.text[: one.position])
            view = session.cache.view()
            caches = {owner: rows.take(np.arange(view.count)) for owner, rows in view.caches.items()}
            samples.append(TreeSample(view.count, tree, *self._tables.rows(tokens), caches))
        return samples

    def _prefill_piece(self) -> TreeSample:
        """The beginning of the first text, as much as the prefill graph takes at once."""
        piece = self._rounds[0][0].text[: self._options.prefill_rows]
        return TreeSample(0, RowTree.chain(len(piece)), *self._tables.rows(piece), {})
