"""The native window of keys and values against export.kv_window, byte for byte, over random histories."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from export.errors import ExportError
from export.kv_window import KvRows, KvWindow

if TYPE_CHECKING:
    from .conftest import Native

pytestmark = pytest.mark.native
SHAPES = {0: (1, 6), 4: (2, 4)}


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def state(window: KvWindow, size: int) -> dict[str, Any]:
    """The slots that a graph with `size` of them is given (TreeFeedBuilder), and all slots where nothing is drafted."""
    view = window.view()
    start = max(0, view.count - size)
    hashes = []
    for cache in view.caches.values():
        keys, values = np.zeros((*cache.keys.shape[:3], size), np.uint8), None
        part = cache.keys[..., start : start + size]
        keys[..., : part.shape[3]] = part
        values = np.zeros((*cache.values.shape[:2], size, cache.values.shape[3]), np.uint8)
        part = cache.values[:, :, start : start + size]
        values[:, :, : part.shape[2]] = part
        hashes += [digest(keys), digest(values)]
        if not view.drafted:
            hashes += [digest(cache.keys), digest(cache.values), *hashes[-2:]]
    counts = {"next_position": window.next_position, "accepted": view.accepted, "drafted": view.drafted}
    return {**counts, "hashes": hashes}


class History:
    """Random steps on the reference; `steps` and `arrays` are the same for the native window."""

    def __init__(self, window: int, size: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.window, self.size = KvWindow(SHAPES, window, np.uint8), size
        self.steps: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.wanted: list[dict[str, Any]] = []

    def append(self, depths: list[int], padding: int = 0) -> None:
        number, rows = len(self.steps), len(depths) + padding
        positions = [self.window.next_position + depth for depth in depths]
        new = {}
        for cache, (owner, (heads, dim)) in enumerate(SHAPES.items()):
            keys = self.rng.integers(0, 256, (1, heads, dim, rows)).astype(np.uint8)
            values = self.rng.integers(0, 256, (1, heads, rows, dim)).astype(np.uint8)
            self.arrays |= {f"keys.{number}.{cache}": keys[0], f"values.{number}.{cache}": values[0]}
            new[owner] = KvRows(keys, values)
        self._step({"append": number, "positions": positions}, lambda: self.window.append(new, positions))

    def accept(self, kept: list[int], still_drafted: list[int] = []) -> None:  # noqa: B006
        step = {"accept": kept, "still_drafted": still_drafted}
        self._step(step, lambda: self.window.accept(kept, still_drafted))

    def roll_back(self, position: int) -> None:
        self._step({"roll_back": position}, lambda: self.window.roll_back(position))

    def _step(self, step: dict[str, Any], act: Any) -> None:
        refused = False
        try:
            act()
        except ExportError:
            refused = True
        self.steps.append(step)
        self.wanted.append({**state(self.window, self.size), "refused": refused})

    def check(self, native: Native) -> None:
        shapes = list(SHAPES.values())
        fields = {"shapes": shapes, "window": self.window.window, "size": self.size, "steps": self.steps}
        found = native.probe("window", self.arrays, **fields)
        for step, result, wanted in zip(self.steps, found, self.wanted, strict=True):
            refused = bool(result.pop("error"))
            assert {**result, "refused": refused} == wanted, step


@pytest.mark.parametrize(("window", "size"), [(8, 8), (12, 7), (40, 40)])
@pytest.mark.parametrize("seed", range(3))
def test_any_history_leaves_the_same_bytes(native: Native, window: int, size: int, seed: int) -> None:
    """Drafts accepted, kept, forgotten; windows that fill and slide many times over their slack; roll-backs."""
    history = History(window, size, seed)
    for _ in range(40):
        rng, drafted = history.rng, history.window.draft_positions
        if drafted and rng.random() < 0.2:
            history.append([len(set(drafted))], padding=2)
            if len(history.window.draft_positions) > window // 2:
                history.accept([])
            continue
        history.accept([])
        depths = sorted(int(depth) for depth in rng.integers(0, 3, rng.integers(1, min(7, window))))
        depths = [0, *depths[1:]]
        history.append(depths, padding=int(rng.integers(0, 3)))
        chain = [depths.index(depth) for depth in range(4) if set(range(depth + 1)) <= set(depths)]
        kept = chain[: rng.integers(0, len(chain) + 1)]
        still = [row for row, depth in enumerate(depths) if depth >= len(kept) and row not in kept][:2]
        history.accept(kept, still if rng.random() < 0.5 else [])
        if rng.random() < 0.1:
            history.roll_back(max(0, history.window.next_position - int(rng.integers(0, 3))))
    history.check(native)


def test_more_rows_than_slots_leave_the_last(native: Native) -> None:
    history = History(5, 5, 0)
    history.append([0, 1, 2, 3])
    history.accept([0, 1, 2, 3])
    for _ in range(12):
        history.append([0, 1, 2, 3, 4])
        history.accept([0, 1, 2, 3, 4])
    history.check(native)


def test_wrong_calls_change_nothing(native: Native) -> None:
    history = History(6, 6, 1)
    history.append([0, 1, 1])
    history.accept([1])
    history.accept([2, 1])
    history.accept([0, 3])
    history.accept([0], [0])
    history.accept([0, 1], [2])
    history.accept([0, 2])
    history.roll_back(3)
    history.append([-1])
    assert [step["refused"] for step in history.wanted] == [False, True, True, True, True, True, False, True, True]
    history.check(native)
