"""Watching a float graph: statistics of all its values, without masks and without what they hide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.observers import TensorObserver

if TYPE_CHECKING:
    from export.engines.graph_io import Feed
    from export.observe import WatchedGraph


class Watcher:
    """Runs a watched graph and keeps statistics of every value but the masks; of masked sums, what a mask lets pass.

    Rows and slots that are padding hold zeros: they may widen a range to 0, which it holds in any case.
    """

    def __init__(self, watched: WatchedGraph) -> None:
        self._watched, self._graph = watched, watched.open()
        self.inputs = self._graph.inputs
        self.tensors: dict[str, TensorObserver] = {}

    def run(self, feed: Feed) -> Feed:
        """One pass; `tensors` take in its values."""
        result = self._graph.run(feed)
        for name, array in self._watched.seen(feed, result):
            self.tensors.setdefault(name, TensorObserver()).observe(array)
        return result
