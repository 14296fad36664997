"""The host's window of keys and values of an SLM: what the graph reads as its past, round after round.

Rows are first appended as a draft. `accept` keeps some of them by gather, may leave others drafts, and lets the oldest
slide out where the window is full; `roll_back` forgets. Accepted tokens fill the slots from the left, one after the
other; a token is known by its position in the text, never by its slot. A drafted row that was not accepted leaves no
trace: the window is bit for bit that of a run which never drafted. Any type of numbers will do. Knows neither masks nor
trees nor tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import DTypeLike


@dataclass(frozen=True, eq=False)
class KvRows:
    """Keys [1, kv_heads, head_dim, n] and values [1, kv_heads, n, head_dim] of n rows in one layer."""

    keys: np.ndarray
    values: np.ndarray

    def take(self, indices: Sequence[int] | np.ndarray) -> KvRows:
        """The rows at `indices`, copied, in that order."""
        places = np.asarray(indices, np.int64)
        return KvRows(self.keys[..., places], self.values[:, :, places])

    def followed_by(self, other: KvRows) -> KvRows:
        """These rows and then the others, copied."""
        return KvRows(
            np.concatenate([self.keys, other.keys], axis=3), np.concatenate([self.values, other.values], axis=2)
        )


@dataclass(frozen=True, eq=False)
class WindowView:
    """What the graph reads: `caches` by owner, all slots; the first `count` hold rows, the rest are zero.

    The last `drafted` of those are rows not yet accepted, in the order they were appended; those before are the tokens
    at positions next_position - accepted .. next_position - 1.
    """

    caches: Mapping[int, KvRows]
    count: int
    drafted: int
    next_position: int

    @property
    def accepted(self) -> int:
        """Number of accepted tokens in the slots."""
        return self.count - self.drafted


class KvWindow:
    """Keys and values of the last `window` accepted tokens, and of drafted rows behind them.

    `shapes`: layer that owns a cache -> (key-value heads, head dimension). Every wrong call is an ExportError and
    changes nothing.
    """

    def __init__(self, shapes: Mapping[int, tuple[int, int]], window: int, dtype: DTypeLike = np.float32) -> None:
        if window < 1:
            raise ExportError(f"a window of {window} tokens holds nothing; give at least 1")
        self.window = window
        self._shapes, self._dtype = dict(shapes), np.dtype(dtype)
        self._slots = self._empty(window)
        self._draft = self._empty(0)
        self._draft_positions = np.empty(0, np.int64)
        self._joined: dict[int, KvRows] | None = None
        self._count = 0
        self._next_position = 0

    @property
    def next_position(self) -> int:
        """Position of the token behind the last accepted one; it grows on when the window is full."""
        return self._next_position

    @property
    def positions(self) -> range:
        """Positions of the accepted tokens, by slot."""
        return range(self._next_position - self._count, self._next_position)

    @property
    def draft_positions(self) -> tuple[int, ...]:
        """Positions of the drafted rows, in the order they were appended."""
        return tuple(self._draft_positions.tolist())

    def view(self) -> WindowView:
        """The slots as the graph takes them, read-only and valid until the next change.

        Without a draft nothing is copied. With one (a second pass over the same tree), drafted rows follow the accepted
        ones, and only this view loses the oldest where both do not fit. A draft beyond the window is an ExportError.
        """
        drafted = len(self._draft_positions)
        if not drafted:
            return WindowView(_read_only(self._slots), self._count, 0, self._next_position)
        if drafted > self.window:
            raise ExportError(f"the draft has {drafted} rows, the window {self.window} slots; accept some first")
        kept = min(self._count, self.window - drafted)
        # one buffer for all such views: fresh memory would cost more than the copy
        self._joined = self._joined or self._empty(self.window)
        for owner, rows in self._joined.items():
            _move(self._slots[owner], slice(self._count - kept, self._count), rows, 0)
            _move(self._draft[owner], slice(0, drafted), rows, kept)
            rows.keys[..., kept + drafted :] = 0
            rows.values[:, :, kept + drafted :] = 0
        return WindowView(_read_only(self._joined), kept + drafted, drafted, self._next_position)

    def append(self, rows: Mapping[int, KvRows], positions: Sequence[int]) -> None:
        """Add a pass's new rows to the draft, copied; one position for each, rows beyond them are padding and left.

        Several rows may have one position: they are alternatives, of which `accept` can keep one.
        """
        self._check_rows(rows, len(positions))
        early = [position for position in positions if position < self._next_position]
        if early:
            raise ExportError(f"a drafted row is at position {early[0]}, but the text has {self._next_position} tokens")
        places = np.arange(len(positions))
        self._draft = {owner: self._draft[owner].followed_by(rows[owner].take(places)) for owner in self._shapes}
        self._draft_positions = np.concatenate([self._draft_positions, np.asarray(positions, np.int64)])

    def accept(self, kept: Sequence[int], still_drafted: Sequence[int] = ()) -> None:
        """Make the drafted rows at the rising indices `kept` the next tokens, in order.

        Of the others, those at the rising indices `still_drafted` stay drafts, in their order and counted from 0 again;
        the rest are forgotten. An index counts the drafted rows as they are before the call. What was there longest
        slides out where the window is full. It is an error if `kept` does not continue the text position by position,
        or if a row stays a draft whose position the text has reached. That such a row sees what is accepted, and
        nothing that is forgotten, is the caller's to know: the window has no trees.
        """
        self._check_kept(kept, still_drafted)
        # Where more rows are kept than there are slots, the window is the last of them.
        last = list(kept)[-self.window :]
        stay = min(self._count, self.window - len(last))
        if last:
            for owner, slots in self._slots.items():
                if stay < self._count:
                    _move(slots, slice(self._count - stay, self._count), slots, 0)
                _move(self._draft[owner].take(last), slice(0, len(last)), slots, stay)
        self._count = stay + len(last)
        self._next_position += len(kept)
        self._keep_draft(still_drafted)

    def roll_back(self, position: int) -> None:
        """Forget the draft and all tokens from `position` on; their slots are zero again.

        What has slid out does not come back: behind a full window, rows then see fewer tokens than in a run that never
        went so far. A position whose predecessor has slid out is an error: the prompt must be prefilled again.
        """
        first = self._next_position - self._count
        if not 0 <= position <= self._next_position or 0 < first >= position:
            raise ExportError(
                f"cannot roll back to position {position}: of {self._next_position} tokens the window holds the last "
                f"{self._count}; prefill the text again"
            )
        stay = position - first
        for rows in self._slots.values():
            rows.keys[..., stay:] = 0
            rows.values[:, :, stay:] = 0
        self._count, self._next_position = stay, position
        self._forget_draft()

    def _check_kept(self, kept: Sequence[int], still_drafted: Sequence[int]) -> None:
        drafted = len(self._draft_positions)
        for rows in (kept, still_drafted):
            if any(not 0 <= index < drafted for index in rows):
                raise ExportError(f"rows {list(rows)} are to be kept, but {drafted} were drafted, counted from 0")
            if any(second <= first for first, second in pairwise(rows)):
                raise ExportError(f"rows {list(rows)} are to be kept; they must rise, as a path through the tree does")
        both = sorted({*kept} & {*still_drafted})
        if both:
            raise ExportError(f"rows {both} are to be accepted and to stay drafts; a row is one or the other")
        positions = self._draft_positions[np.asarray(kept, np.int64)].tolist()
        behind = self._next_position + len(kept)
        if positions != list(range(self._next_position, behind)):
            raise ExportError(f"rows at positions {positions} cannot be kept: the next one is {self._next_position}")
        early = [at for at in self._draft_positions[np.asarray(still_drafted, np.int64)].tolist() if at < behind]
        if early:
            raise ExportError(f"a row at position {early[0]} cannot stay a draft: the text then has {behind} tokens")

    def _keep_draft(self, indices: Sequence[int]) -> None:
        if not len(indices):
            self._forget_draft()
        elif len(indices) < len(self._draft_positions):
            self._draft = {owner: rows.take(indices) for owner, rows in self._draft.items()}
            self._draft_positions = self._draft_positions[np.asarray(indices, np.int64)]

    def _forget_draft(self) -> None:
        self._draft = self._empty(0)
        self._draft_positions = np.empty(0, np.int64)

    def _empty(self, rows: int) -> dict[int, KvRows]:
        return {
            owner: KvRows(np.zeros((1, heads, dim, rows), self._dtype), np.zeros((1, heads, rows, dim), self._dtype))
            for owner, (heads, dim) in self._shapes.items()
        }

    def _check_rows(self, rows: Mapping[int, KvRows], needed: int) -> None:
        if rows.keys() != self._shapes.keys():
            raise ExportError(f"rows of layers {sorted(rows)} were given, the window is of {sorted(self._shapes)}")
        for owner, (heads, dim) in self._shapes.items():
            keys, values = rows[owner].keys, rows[owner].values
            count = keys.shape[-1]
            if keys.shape != (1, heads, dim, count) or values.shape != (1, heads, count, dim):
                raise ExportError(
                    f"layer {owner}: keys are {list(keys.shape)}, values {list(values.shape)}; "
                    f"needed are [1, {heads}, {dim}, n] and [1, {heads}, n, {dim}]"
                )
            if count < needed:
                raise ExportError(f"layer {owner}: {needed} positions, but only {count} rows of keys and values")
            if {keys.dtype, values.dtype} != {self._dtype}:
                raise ExportError(f"layer {owner}: rows are {keys.dtype} and {values.dtype}, the window {self._dtype}")


def _move(source: KvRows, places: slice, target: KvRows, start: int) -> None:
    """Copy the rows `places` of `source` to `target` from slot `start` on; both may be the same (numpy buffers it)."""
    stop = start + places.stop - places.start
    target.keys[..., start:stop] = source.keys[..., places]
    target.values[:, :, start:stop] = source.values[:, :, places]


def _read_only(slots: Mapping[int, KvRows]) -> dict[int, KvRows]:
    views = {owner: KvRows(rows.keys.view(), rows.values.view()) for owner, rows in slots.items()}
    for rows in views.values():
        rows.keys.flags.writeable = rows.values.flags.writeable = False
    return views
