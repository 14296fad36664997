"""The CPU's share of one SLM pass: which rows attend to what, positions, padding, and the softcap behind it.

What a row sees depends on positions alone: the token at p sees the `window` tokens before it and itself, in sliding
layers p - sliding_window + 1 .. p (itself included). So a text gives the same logits however it is cut into passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration.states import kind_of_layer_type
from export.errors import ExportError
from export.graphs.feeds import MASKED
from export.graphs.rope import inverse_frequencies, signed_rotation
from export.graphs.slm import SlmInputs, head_dims, kind_of_owner

if TYPE_CHECKING:
    from export.checkpoint.slm import SlmConfig
    from export.graphs.feeds import Feed
    from export.kv_window import WindowView


@dataclass(frozen=True)
class RowTree:
    """The rows of a pass as a tree: `parents[i]` is the row that row i follows, None the last accepted token.

    Parents come first. Accepted tokens that the window lacks are rows like others: a chain with the tree behind it.
    The first `stored` rows are drafted rows that the window holds already, in its order; only the others are run.
    """

    parents: tuple[int | None, ...]
    stored: int = 0

    def __post_init__(self) -> None:
        for row, parent in enumerate(self.parents):
            if parent is not None and not 0 <= parent < row:
                raise ExportError(f"row {row} of the tree follows row {parent}; a row follows an earlier one or none")
        if not 0 <= self.stored < len(self.parents):
            raise ExportError(f"{self.stored} of the tree's {len(self.parents)} rows are stored; at least one must run")

    @classmethod
    def chain(cls, length: int) -> RowTree:
        """`length` rows, each behind the one before it: a piece of a prompt."""
        return cls(tuple(row - 1 if row else None for row in range(length)))

    @property
    def run(self) -> int:
        """Number of rows that the pass runs."""
        return len(self.parents) - self.stored

    def depths(self) -> np.ndarray:
        """int64 [all rows]: how many rows come before each on its path."""
        depths = np.zeros(len(self.parents), np.int64)
        for row, parent in enumerate(self.parents):
            depths[row] = 0 if parent is None else depths[parent] + 1
        return depths

    def positions(self, next_position: int) -> np.ndarray:
        """int64 [run]: positions of the rows that the pass runs, where the text goes on at `next_position`."""
        positions: np.ndarray = next_position + self.depths()[self.stored :]
        return positions

    def lineage(self) -> np.ndarray:
        """bool [all rows, all rows]: [i, j] is true where j is i itself or an ancestor of i."""
        lineage = np.eye(len(self.parents), dtype=np.bool_)
        for row, parent in enumerate(self.parents):
            if parent is not None:
                lineage[row] |= lineage[parent]
        return lineage


@dataclass(frozen=True)
class TreeFeedBuilder:
    """Builds float feeds of a graph with `rows` rows and a window of `window` slots."""

    config: SlmConfig
    rows: int
    window: int

    def feed(self, tree: RowTree, embedding: np.ndarray, per_layer: np.ndarray, view: WindowView) -> Feed:
        """The whole feed; embedding [run, hidden] and per_layer [run, layers * width], scaled as `Slm` takes them.

        Rows beyond the tree's are padding: zero, at position 0, seeing themselves alone and seen by none. Raises
        ExportError for a tree that the graph or the window cannot hold.
        """
        self._check(tree, view)
        feed: Feed = {"embedding": self._padded(tree, embedding), "per_layer": self._padded(tree, per_layer)}
        positions = np.zeros(self.rows, np.int64)
        positions[: tree.run] = tree.positions(view.next_position)
        for kind, mask in self.masks(tree, view).items():
            feed[f"mask_{kind}"] = mask
            feed[f"cos_{kind}"], feed[f"sin_{kind}"] = self._rotation(kind, positions)
        for owner, cache in view.caches.items():
            slots = self._slots(kind_of_owner(self.config, owner), view)
            feed[f"past_keys_{owner}"] = cache.keys[..., slots]
            feed[f"past_values_{owner}"] = cache.values[:, :, slots]
        return feed

    def masks(self, tree: RowTree, view: WindowView) -> dict[str, np.ndarray]:
        """Kind of layer -> mask [1, 1, rows, slots + rows]: 0 where a row sees a slot or a row, MASKED elsewhere."""
        positions = view.next_position + tree.depths()
        run, accepted = slice(tree.stored, None), slice(0, view.accepted)
        drafted = slice(view.accepted, view.count)
        rows = slice(self.window, self.window + tree.run)
        allowed = np.zeros((tree.run, self.window + self.rows), np.bool_)
        key_positions = np.zeros(self.window + self.rows, np.int64)
        key_positions[accepted] = np.arange(view.next_position - view.accepted, view.next_position)
        key_positions[drafted], key_positions[rows] = positions[: tree.stored], positions[run]
        lineage = tree.lineage()[run]
        allowed[:, accepted] = True
        allowed[:, drafted], allowed[:, rows] = lineage[:, : tree.stored], lineage[:, run]
        distance = positions[run, None] - key_positions
        masks = {}
        for kind in head_dims(self.config):
            mask = self._mask(allowed & (distance <= self._reach(kind)))
            masks[kind] = np.concatenate([mask[..., self._slots(kind, view)], mask[..., self.window :]], axis=3)
        return masks

    def _slots(self, kind: str, view: WindowView) -> slice:
        """The slots that layers of a kind are given: the last filled ones, or the first where all of those fit."""
        size = SlmInputs(self.config, self.rows, self.window).slots(kind)
        start = max(0, view.count - size)
        return slice(start, start + size)

    def _reach(self, kind: str) -> int:
        """How many positions before its own a row sees."""
        return min(self.window, self.config.sliding_window - 1) if kind == "sliding" else self.window

    def _mask(self, visible: np.ndarray) -> np.ndarray:
        mask = np.full((self.rows, self.window + self.rows), MASKED, np.float32)
        mask[: len(visible)][visible] = 0.0
        # A row that sees nothing would be an average of everything; padding sees itself, and nobody sees it.
        padding = np.arange(len(visible), self.rows)
        mask[padding, self.window + padding] = 0.0
        return mask[None, None]

    def _rotation(self, kind: str, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rope = next(rope for rope in self.config.ropes if kind_of_layer_type(rope.kind) == kind)
        frequencies = inverse_frequencies(rope, head_dims(self.config)[kind])
        return signed_rotation(frequencies, positions)

    def _padded(self, tree: RowTree, values: np.ndarray) -> np.ndarray:
        if values.ndim != 2 or len(values) != tree.run:
            raise ExportError(f"embeddings are {list(values.shape)}, but the pass runs {tree.run} rows: [rows, width]")
        padded = np.zeros((1, 1, self.rows, values.shape[1]), np.float32)
        padded[0, 0, : tree.run] = values
        return padded

    def _check(self, tree: RowTree, view: WindowView) -> None:
        if tree.run > self.rows:
            raise ExportError(f"the tree runs {tree.run} rows, the graph has {self.rows}")
        if tree.stored != view.drafted:
            raise ExportError(
                f"{tree.stored} rows of the tree count as stored, but the window holds a draft of {view.drafted}"
            )
        short = SlmInputs(self.config, self.rows, self.window).slots("sliding")
        if short < self.window and short - view.drafted < min(view.accepted, self.config.sliding_window - 1):
            raise ExportError(
                f"the window holds {view.drafted} drafted rows; beside {self.rows} rows {self.rows + 1} can be read"
            )
        for owner, slots in view.caches.items():
            if slots.values.shape[2] != self.window:
                raise ExportError(f"layer {owner}: {slots.values.shape[2]} slots, the graph has {self.window}")


def softcapped(logits: np.ndarray, cap: float | None) -> np.ndarray:
    """cap * tanh(logits / cap), the model's own last step; without a cap the logits as they are.

    It leaves the order of the tokens alone, so it may run on the few that were chosen.
    """
    if cap is None:
        return logits
    capped: np.ndarray = np.tanh(logits / cap) * cap
    return capped
