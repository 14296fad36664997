"""One drafting round: what each step is fed, and what a column means."""

from __future__ import annotations

import numpy as np
import pytest

from export.engines.graph_io import Feed
from export.graphs.feeds import FeedBuilder, PositionRule
from export.graphs.rope import inverse_frequencies, signed_rotation
from export.mtp.chain import CHAIN_LENGTH, MtpChain

from ..tiny import BACKBONE, TinyHead, random_state
from .conftest import random_rows

KEEP = np.array([2, 17, 40, 106, 299])


class Scripted:
    """A step graph that answers given logits and marks its hidden states with the number of the step."""

    def __init__(self, logits: list[list[float]]) -> None:
        self.logits, self.feeds = logits, list[Feed]()

    def run(self, feed: Feed) -> Feed:
        self.feeds.append(feed)
        row = np.array(self.logits[len(self.feeds) - 1], np.float32)
        hidden = np.full((1, 1, 1, BACKBONE), len(self.feeds), np.float32)
        # Two chunks, as a graph with a large keep set has.
        return {"next_hidden": hidden, "logits_0": row[None, None, None, :3], "logits_1": row[None, None, None, 3:]}


def chain(tiny: TinyHead, rule: PositionRule = "p") -> MtpChain:
    return MtpChain(FeedBuilder(tiny.config, 8, rule), KEEP, random_rows)


def test_columns_map_to_token_ids_and_ties_go_to_the_lowest(tiny: TinyHead) -> None:
    graph = Scripted([[0, 0, 0, 0, 9], [7, 7, 1, 7, 0], [0, 0, 5, 5, 0], [0, 0, 0, 0, 0]])
    steps = list(chain(tiny).run(graph, random_state(tiny.config, 5)))
    assert len(steps) == CHAIN_LENGTH == 4
    assert [step.token_id for step in steps] == [299, 2, 40, 2]
    assert steps[0].logits.tolist() == [0, 0, 0, 0, 9]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [3, 4, 1, 0, 2]])
def test_drafts_follow_a_permuted_map(tiny: TinyHead, order: list[int]) -> None:
    """Case 41: a column means the token that the map names, never the column's own number."""
    looked_up: list[int] = []

    def embed(token_id: int) -> np.ndarray:
        looked_up.append(token_id)
        return random_rows(token_id)

    keep = KEEP[order]
    permuted = MtpChain(FeedBuilder(tiny.config, 8), keep, embed)
    columns = [4, 0, 2, 3]
    graph = Scripted([[float(column == best) for column in range(5)] for best in columns])
    drafted = [step.token_id for step in permuted.run(graph, random_state(tiny.config, 5))]
    assert drafted == [[2, 17, 40, 106, 299][order[column]] for column in columns]
    assert looked_up == drafted[:-1]


def test_each_step_reads_the_token_and_the_hidden_of_the_one_before(tiny: TinyHead) -> None:
    graph, state = Scripted([[0, 1, 0, 0, 0]] * 3), random_state(tiny.config, 5)
    list(chain(tiny).run(graph, state, steps=3))
    np.testing.assert_array_equal(graph.feeds[0]["embedding"].ravel(), state.embedding)
    np.testing.assert_array_equal(graph.feeds[0]["hidden"].ravel(), state.hidden)
    for number in (1, 2):
        np.testing.assert_array_equal(graph.feeds[number]["embedding"].ravel(), random_rows(17))
        assert (graph.feeds[number]["hidden"] == number).all()


@pytest.mark.parametrize(("rule", "offset"), [("p", 0), ("p-1", 1)])
def test_one_position_for_all_steps_of_a_round(tiny: TinyHead, rule: PositionRule, offset: int) -> None:
    """Row 30: the position is not advanced from step to step, and the next round starts from its own."""
    for position in (5, 8, 10):  # rounds with 0, 2 and 1 accepted drafts and the bonus token
        graph = Scripted([[1, 0, 0, 0, 0]] * 4)
        list(chain(tiny, rule).run(graph, random_state(tiny.config, position)))
        for feed in graph.feeds:
            for rope in tiny.config.ropes:
                kind = rope.kind.removesuffix("_attention")
                frequencies = inverse_frequencies(rope, feed[f"cos_{kind}"].shape[-1])
                cos, sin = signed_rotation(frequencies, position - offset)
                np.testing.assert_array_equal(feed[f"cos_{kind}"], cos)
                np.testing.assert_array_equal(feed[f"sin_{kind}"], sin)
                assert feed[f"mask_{kind}"] is graph.feeds[0][f"mask_{kind}"]


def test_no_lookup_behind_the_last_step(tiny: TinyHead) -> None:
    looked_up: list[int] = []

    def embed(token_id: int) -> np.ndarray:
        looked_up.append(token_id)
        return random_rows(token_id)

    graph = Scripted([[0, 0, 0, 1, 0]] * 2)
    list(MtpChain(FeedBuilder(tiny.config, 8), KEEP, embed).run(graph, random_state(tiny.config, 3), steps=2))
    assert looked_up == [106]
