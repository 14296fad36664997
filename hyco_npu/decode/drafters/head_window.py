"""The rows of the verifier that the MTP head reads, gathered reply by reply.

Only rows that a reply brings are here, and a reply brings those of accepted tokens alone: a rejected draft leaves
nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibration.states import HeadState
from hyco_npu.decode.errors import DecodeError

if TYPE_CHECKING:
    from hyco_npu.decode.protocols import HeadUpdate

_SMALLEST = 64


class HeadWindow:
    """The last `window` rows of one text, or all of them (None), and the newest hidden state and embedding."""

    def __init__(self, window: int | None) -> None:
        if window is not None and window < 1:
            raise DecodeError(f"a window of {window} rows shows the head nothing; give at least 1, or None for all")
        self._window = window
        self._keys: dict[str, _Rows] = {}
        self._values: dict[str, _Rows] = {}
        self._newest: HeadUpdate | None = None

    def extend(self, update: HeadUpdate | None) -> None:
        """Append an update's rows. Raises DecodeError where there is none, or its arrays differ in rows."""
        if update is None:
            raise DecodeError("the reply has no state for the MTP head; decode with a verifier that has one")
        counts = {array.shape[1] for array in (*update.keys.values(), *update.values.values())}
        if len(counts) != 1:
            raise DecodeError(f"the head's keys and values have {sorted(counts)} new rows; all must have as many")
        for rows, arrays in ((self._keys, update.keys), (self._values, update.values)):
            for kind, array in arrays.items():
                rows.setdefault(kind, _Rows(self._window)).append(array)
        self._newest = update

    def state(self, token_id: int, position: int) -> HeadState:
        """What the head drafts from behind `position` verified rows, where `token_id` is the text's last token.

        The arrays are views that later updates leave as they are. Raises DecodeError before the first update.
        """
        if self._newest is None:
            raise DecodeError("the head has no state before the first reply")
        return HeadState(
            token_id=token_id,
            position=position,
            embedding=self._newest.embedding,
            hidden=self._newest.hidden,
            keys={kind: rows.view() for kind, rows in self._keys.items()},
            values={kind: rows.view() for kind, rows in self._values.items()},
        )


class _Rows:
    """Rows [heads, n, head_dim] that grow at the end and are shown from the last `window`.

    A row is copied a constant number of times on average: a buffer has room for as many rows as it was given.
    """

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._buffer = np.empty((0, 0, 0), np.float32)
        self._stop = 0

    def append(self, rows: np.ndarray) -> None:
        if self._window is not None:
            rows = rows[:, -self._window :]
        count = rows.shape[1]
        if self._stop + count > self._buffer.shape[1]:
            self._move(rows)
        self._buffer[:, self._stop : self._stop + count] = rows
        self._stop += count

    def view(self) -> np.ndarray:
        start = 0 if self._window is None else max(0, self._stop - self._window)
        return self._buffer[:, start : self._stop]

    def _move(self, coming: np.ndarray) -> None:
        """To a new buffer, so that views of the old one stay what they were."""
        kept = self.view()
        heads, count, head_dim = coming.shape
        stay = kept.shape[1] if self._window is None else min(kept.shape[1], self._window - count)
        buffer = np.empty((heads, max(_SMALLEST, 2 * (stay + count)), head_dim), coming.dtype)
        if stay:
            buffer[:, :stay] = kept[:, -stay:]
        self._buffer, self._stop = buffer, stay
