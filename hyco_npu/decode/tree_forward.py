"""One forward pass of a transformers model over rows of several texts, each a tree behind what its text has cached.

Masks and positions are explicit, so the model's own notion of a sequence does not matter. This module keeps no text and
knows no acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Gemma4ForCausalLM

from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.row_cache import KeySpan, PassCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from export.graphs.tree_feeds import RowTree
    from hyco_npu.decode.row_cache import RowCache

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MASKABLE_ATTENTION = ("sdpa", "eager")


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows to run behind a text: a token for each row of the tree."""

    text: RowCache
    token_ids: Sequence[int]
    tree: RowTree


@dataclass(frozen=True, eq=False)
class PieceOutput:
    """Logits [rows, vocabulary] float32; hidden [rows, hidden_size] after the final norm, None without an MTP head."""

    logits: np.ndarray
    hidden: torch.Tensor | None


class TreeForward:
    """Owns the model. Of a Gemma 4 it hands out hidden states too, since it computes the output layer itself.

    Raises DecodeError for attention that cannot be masked freely: an implementation without masks (flash, flex), or
    layers that are neither full nor sliding.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model
        self.config: Any = model.config.get_text_config()
        if self.config._attn_implementation not in _MASKABLE_ATTENTION:
            raise DecodeError(
                f"the verifier's attention is {self.config._attn_implementation!r}, which takes no tree masks; load it "
                f"with attn_implementation={' or '.join(map(repr, _MASKABLE_ATTENTION))}"
            )
        self.layer_types = _layer_types(self.config)
        self._windows = {layer: self._window(kind) for layer, kind in enumerate(self.layer_types)}
        self.has_head = isinstance(model, Gemma4ForCausalLM)

    @torch.inference_mode()
    def run(self, pieces: Sequence[Piece], last_only: bool) -> list[PieceOutput]:
        """Outputs of every row, or of each piece's last; the caches gain all rows of their pieces."""
        rows = [len(piece.token_ids) for piece in pieces]
        places = [_Place(piece.text.filled, piece.tree) for piece in pieces]
        # the rows whose outputs are computed: all, or those where a piece ends
        wanted = sorted({count - 1 for count in rows}) if last_only else list(range(max(rows)))
        inputs = {
            "input_ids": self._padded([np.asarray(piece.token_ids, np.int64) for piece in pieces]),
            "position_ids": self._padded([place.positions for place in places]),
            "attention_mask": self._masks(places),
            "cache": PassCache([piece.text for piece in pieces], rows, self._windows),
            "use_cache": True,
        }
        logits, hidden = self._outputs(inputs, wanted, max(rows))
        scores = logits.float().cpu().numpy()
        outputs = []
        for number, (piece, count) in enumerate(zip(pieces, rows, strict=True)):
            piece.text.advance(count)
            end = wanted.index(count - 1) + 1
            own = slice(end - 1 if last_only else 0, end)
            outputs.append(PieceOutput(scores[number, own], None if hidden is None else hidden[number, own]))
        return outputs

    @torch.inference_mode()
    def embedding(self, token_id: int) -> torch.Tensor:
        """[hidden_size]: the model's input embedding of a token, scaled as the model scales it."""
        embed = self.model.get_input_embeddings()
        row: torch.Tensor = embed(torch.tensor([token_id], device=self.model.device))[0]
        return row

    def _outputs(
        self, inputs: dict[str, Any], wanted: list[int], rows: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        keep: Any = 0 if len(wanted) == rows else torch.tensor(wanted, device=self.model.device)
        if not self.has_head:
            return self.model(**inputs, logits_to_keep=keep).logits, None
        # An int lets layers that share keys and values run the last row alone.
        hidden = self.model.model(**inputs, logits_to_keep=1 if wanted == [rows - 1] else 0).last_hidden_state
        if hidden.shape[1] > len(wanted):
            hidden = hidden[:, keep]
        logits = self.model.lm_head(hidden)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap, hidden

    def _masks(self, places: Sequence[_Place]) -> torch.Tensor | dict[str, torch.Tensor]:
        """Additive masks [pieces, 1, rows, keys]; models whose layers are all of one kind take it bare."""
        masks = {kind: self._mask(places, self._window(kind)) for kind in set(self.layer_types)}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, places: Sequence[_Place], window: int | None) -> torch.Tensor:
        spans = [KeySpan.of(place.past, len(place.positions), window) for place in places]
        masked = torch.finfo(self.model.dtype).min
        # Rows behind a piece's last are padding: they see everything, lest a row see nothing, and nobody sees them.
        mask = np.zeros((len(places), 1, max(span.rows for span in spans), max(map(len, spans))), np.float32)
        for number, (place, span) in enumerate(zip(places, spans, strict=True)):
            rows, past, seen = mask[number, 0, : span.rows], span.past - span.start, place.lineage
            rows[:, len(span) :] = masked
            if window is not None:
                positions = place.positions[:, None]
                rows[:, :past][positions - np.arange(span.start, span.past) >= window] = masked
                seen = seen & (positions - positions.T < window)
            rows[:, past : len(span)][~seen] = masked
        return torch.from_numpy(mask).to(device=self.model.device, dtype=self.model.dtype)

    def _padded(self, rows: Sequence[np.ndarray]) -> torch.Tensor:
        padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for number, row in enumerate(rows):
            padded[number, : len(row)] = row
        return torch.from_numpy(padded).to(self.model.device)

    def _window(self, layer_type: str) -> int | None:
        return int(self.config.sliding_window) if layer_type == _SLIDING else None


class _Place:
    """A piece in its text: rows before it, positions of its own [rows], and who descends from whom [rows, rows]."""

    def __init__(self, past: int, tree: RowTree) -> None:
        self.past, self.positions, self.lineage = past, tree.positions(past), tree.lineage()


def _layer_types(config: Any) -> list[str]:
    """Every layer's kind; a config that names none has one kind, sliding where it names a window (Mistral)."""
    types = getattr(config, "layer_types", None)
    if types is None:
        sliding = getattr(config, "sliding_window", None) is not None
        return [_SLIDING if sliding else _FULL] * config.num_hidden_layers
    other = sorted(set(types) - {_FULL, _SLIDING})
    if other:
        raise DecodeError(
            f"the verifier has layers of kind {other[0]!r}; trees can be masked in {_FULL} and {_SLIDING}"
        )
    return list(types)
