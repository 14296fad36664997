"""Samples survive their file, and feed a graph exactly as they were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from export.engines.graph_io import Feed
from export.graphs.feeds import FeedBuilder
from export.mtp.chain import MtpChain
from export.mtp.samples import load_samples, record_samples, run_samples, save_samples
from export.mtp.states import halved

from ..tiny import TinyHead, random_state, run_torch
from .conftest import random_rows

if TYPE_CHECKING:
    from pathlib import Path

KEEP = np.arange(0, 300, 7)


class TorchGraph:
    """The static module over the keep set."""

    def __init__(self, tiny: TinyHead) -> None:
        self.tiny, self.feeds = tiny, list[Feed]()

    def run(self, feed: Feed) -> Feed:
        self.feeds.append(feed)
        hidden, logits = run_torch(self.tiny.head, feed)
        return {"next_hidden": hidden, "logits_0": logits[KEEP]}


def test_round_trip(tiny: TinyHead, tmp_path: Path) -> None:
    states = [halved(random_state(tiny.config, position, seed=position)) for position in (3, 20)]
    builder = FeedBuilder(tiny.config, 16)
    graph = TorchGraph(tiny)
    samples = record_samples(MtpChain(builder, KEEP, random_rows), states, graph)
    fed = list(graph.feeds)
    assert len(samples) == len(fed) == 8
    samples.references.update(
        {name: samples.references["fp32"].at(range(8)) for name in ("transformers", "fake_quant")}
    )
    save_samples(samples, tmp_path / "samples.safetensors")
    loaded = load_samples(tmp_path / "samples.safetensors")
    assert loaded.state_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [(s.token_id, s.position) for s in loaded.states] == [(s.token_id, s.position) for s in states]
    for index, feed in enumerate(fed):
        again = loaded.feed(builder, index)
        assert again.keys() == feed.keys()
        for name, array in feed.items():
            np.testing.assert_array_equal(again[name], array)
    outputs = run_samples(loaded, builder, graph, range(8))
    np.testing.assert_array_equal(outputs.logits, loaded.references["fp32"].logits)
    np.testing.assert_array_equal(outputs.hidden, loaded.references["fp32"].hidden)
    picked = loaded.references["fp32"].at([5, 1])
    np.testing.assert_array_equal(picked.logits, outputs.logits[[5, 1]])


def test_halved_states_are_what_a_file_can_keep(tiny: TinyHead) -> None:
    state = random_state(tiny.config, 5)
    half = halved(state)
    for kind in ("sliding", "full"):
        np.testing.assert_array_equal(half.keys[kind], state.keys[kind].astype(np.float16).astype(np.float32))
        assert half.values[kind].dtype == np.float32
    assert half.embedding is state.embedding
