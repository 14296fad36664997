"""Keys and values of a text at the verifier, in buffers that grow: a pass appends rows, a commit keeps some of them.

transformers' own caches grow by concatenation, which copies the text in every layer of every pass, and its sliding
caches cannot give rejected rows back. Here a pass writes its rows behind the text, a commit moves the kept ones up, and
sliding layers read the last rows of a full-length buffer. This module knows neither trees nor models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SPARE_ROWS = 256


class RowCache:
    """All layers of one text: `committed` rows, and behind them up to `filled` those of the pass under way."""

    def __init__(self) -> None:
        self.committed = 0
        self.filled = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write a layer's rows [kv_heads, rows, head_dim] behind row `filled`; `advance` counts them for all."""
        stop = self.filled + keys.shape[1]
        buffers = self._layers.get(layer)
        if buffers is None or buffers[0].shape[1] < stop:
            buffers = (self._grown(buffers and buffers[0], keys), self._grown(buffers and buffers[1], values))
            self._layers[layer] = buffers
        buffers[0][:, self.filled : stop] = keys
        buffers[1][:, self.filled : stop] = values

    def rows(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of keys and values [kv_heads, stop - start, head_dim]."""
        keys, values = self._layers[layer]
        return keys[:, start:stop], values[:, start:stop]

    def advance(self, rows: int) -> None:
        """Count rows that every layer has appended."""
        self.filled += rows

    def drop(self) -> None:
        """Forget the pass under way."""
        self.filled = self.committed

    def keep(self, rows: Sequence[int]) -> None:
        """Commit these of the pass's rows, counted from its first, in rising order; forget the others."""
        settled = next((place for place, row in enumerate(rows) if row != place), len(rows))
        if settled < len(rows):
            target = slice(self.committed + settled, self.committed + len(rows))
            for pair in self._layers.values():
                source = torch.tensor(rows[settled:], device=pair[0].device) + self.committed
                for buffer in pair:
                    buffer[:, target] = buffer.index_select(1, source)
        self.committed += len(rows)
        self.filled = self.committed

    def _grown(self, buffer: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        needed = self.filled + new.shape[1]
        grown = new.new_empty((new.shape[0], needed + max(_SPARE_ROWS, needed // 2), new.shape[2]))
        if buffer is not None:
            grown[:, : self.filled] = buffer[:, : self.filled]
        return grown


@dataclass(frozen=True)
class KeySpan:
    """The rows of a text that a layer reads in a pass: `start` up to `past` from before it, then its own `rows`."""

    start: int
    past: int
    rows: int

    @classmethod
    def of(cls, past: int, rows: int, window: int | None) -> KeySpan:
        """What the first row of a pass, at position `past`, sees through a sliding window; None: everything."""
        return cls(0 if window is None else max(0, past - window + 1), past, rows)

    @property
    def stop(self) -> int:
        """The row behind the last."""
        return self.past + self.rows

    def __len__(self) -> int:
        return self.stop - self.start


class PassCache(Cache):
    """The cache of one forward pass over rows of several texts, which it writes to each text's own.

    `windows` gives every layer's sliding window, None for full attention. A layer is handed keys and values
    [texts, kv_heads, keys, head_dim], each text's KeySpan padded with zeros behind it.
    """

    def __init__(self, texts: Sequence[RowCache], rows: Sequence[int], windows: Mapping[int, int | None]) -> None:
        super().__init__(layers=[])
        self._texts, self._rows, self._windows = texts, rows, windows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the pass's rows of a layer, and hand out what it attends to."""
        read = []
        for number, (text, rows) in enumerate(zip(self._texts, self._rows, strict=True)):
            text.append(layer_idx, key_states[number, :, :rows], value_states[number, :, :rows])
            span = KeySpan.of(text.filled, rows, self._windows[layer_idx])
            read.append(text.rows(layer_idx, span.start, span.stop))
        keys, values = zip(*read, strict=True)
        return _padded(keys), _padded(values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows of the longest text before the pass."""
        return max(text.filled for text in self._texts)


def _padded(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0][None]
    # zeros, because a masked key still enters sums: what lies in fresh memory may be NaN
    heads, _, width = parts[0].shape
    out = parts[0].new_zeros((len(parts), heads, max(part.shape[1] for part in parts), width))
    for number, part in enumerate(parts):
        out[number, :, : part.shape[1]] = part
    return out
