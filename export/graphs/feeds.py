"""The CPU's share of one drafting step: windows, masks, positions, and the order of the graph's inputs.

Slots of the window are filled from the left; empty slots and rows outside a sliding layer's own window are masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from export.graphs.mtp import KINDS, layer_of_kind
from export.graphs.rope import inverse_frequencies, signed_rotation

if TYPE_CHECKING:
    from calibration.states import HeadState
    from export.checkpoint.mtp import MtpConfig

MASKED = -100.0
"""Added to a masked score: exp(-100) is nothing beside any score of these models, and the range stays usable."""

PositionRule = Literal["p", "p-1"]
Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class FeedBuilder:
    """Builds float feeds of the MTP step graph from the verifier's states.

    `position_rule`: "p" gives the query the bonus token's own position, as transformers does; "p-1" that of the last
    verified row, as two other implementations do.
    """

    config: MtpConfig
    window: int
    position_rule: PositionRule = "p"

    def context(self, state: HeadState) -> Feed:
        """Keys, values, masks, cosines and sines: the same for all steps of a round."""
        feed: Feed = {}
        for kind in KINDS:
            layer = layer_of_kind(self.config, kind)
            keys, values = state.keys[kind][:, -self.window :], state.values[kind][:, -self.window :]
            rows = keys.shape[1]
            padded_keys = np.zeros((1, layer.num_key_value_heads, layer.head_dim, self.window), np.float32)
            padded_values = np.zeros((1, layer.num_key_value_heads, self.window, layer.head_dim), np.float32)
            padded_keys[0, :, :, :rows] = keys.transpose(0, 2, 1)
            padded_values[0, :, :rows] = values
            feed[f"keys_{kind}"], feed[f"values_{kind}"] = padded_keys, padded_values
            feed[f"mask_{kind}"] = self._mask(kind, rows)
            position = state.position - (self.position_rule == "p-1")
            rope = next(r for r in self.config.ropes if r.kind == layer.kind)
            cos, sin = signed_rotation(inverse_frequencies(rope, layer.head_dim), position)
            feed[f"cos_{kind}"], feed[f"sin_{kind}"] = cos, sin
        return feed

    def step(self, context: Feed, embedding: np.ndarray, hidden: np.ndarray) -> Feed:
        """One step's whole feed; embedding and hidden [backbone]."""
        width = self.config.backbone_hidden_size
        shape = (1, 1, 1, width)
        return {"embedding": embedding.reshape(shape), "hidden": hidden.reshape(shape), **context}

    def _mask(self, kind: str, rows: int) -> np.ndarray:
        mask = np.full((1, 1, 1, self.window), MASKED, np.float32)
        visible = min(rows, self.config.sliding_window) if kind == "sliding" else rows
        mask[..., rows - visible : rows] = 0.0
        return mask
