"""Sums over rounds against hand counts, with the event list of a known fault in counting tokens and rates."""

from __future__ import annotations

import numpy as np
import pytest

from hyco_npu.decode.config import load_config
from hyco_npu.decode.loop import Round
from hyco_npu.decode.protocols import HeadUpdate, Reply
from hyco_npu.decode.trace import bytes_down, bytes_up, head_on_device, sources_of, summarize, trace_lines
from hyco_npu.decode.tree import DraftTree

HYCO = load_config("hyco")


def a_round(drafted: int, accepted: int, seconds: float, bonus: bool = True) -> Round:
    tree = DraftTree.chain(range(10, 11 + drafted), "mtp")
    emitted = (*tree.token_ids[1 : 1 + accepted], *([99] if bonus else []))
    reply = Reply(tuple(range(1, 1 + accepted)), emitted, finished=False)
    return Round(tree, reply, seconds, {"device.mtp": seconds / 4, "server.forward": seconds / 2})


# rounds of 1, 5, 2 and 4 tokens at 1.0, 1.1, 1.2 and 1.3 s
ROUNDS = [a_round(0, 0, 1.0), a_round(4, 4, 0.1), a_round(4, 1, 0.1), a_round(4, 3, 0.1)]


def test_a_chunk_of_several_tokens_counts_as_several_and_the_prefill_is_no_round() -> None:
    summary = summarize(ROUNDS, HYCO)
    assert summary.tokens == 12
    assert summary.rounds == 3
    assert summary.tokens_per_s == pytest.approx(11 / 0.3)
    assert summary.time_to_first_token_s == 1.0
    assert summary.mat == pytest.approx((5 + 2 + 4) / 3)
    assert summary.accounted == pytest.approx(0.75)
    assert summary.phases["device.mtp"] == pytest.approx(1.3 / 4)
    assert summary.sources == {"mtp": 8, "verifier": 4}


def test_a_text_of_one_token_has_no_rate() -> None:
    summary = summarize(ROUNDS[:1], HYCO)
    assert (summary.rounds, summary.mat, summary.tokens_per_s) == (0, None, None)


def test_a_line_a_round_whose_parts_add_up_to_the_whole() -> None:
    lines = trace_lines(ROUNDS, HYCO)
    assert [line["accepted"] for line in lines] == [0, 4, 1, 3]
    assert [line["rows"] for line in lines] == [1, 5, 5, 5]
    assert [line["bonus"] for line in lines] == [99] * 4
    assert [line["mat"] for line in lines] == [None, 5.0, 3.5, pytest.approx(11 / 3)]
    whole = summarize(ROUNDS, HYCO)
    for key, total in (("bytes_up", whole.bytes_up), ("bytes_down", whole.bytes_down)):
        assert sum(line[key] for line in lines) == total
    assert sum(len(line["emitted"]) for line in lines) == whole.tokens
    assert [len(line["sources"]) for line in lines] == [1, 5, 2, 4]


def test_a_text_that_ends_on_an_accepted_token_has_no_bonus() -> None:
    last = a_round(4, 2, 0.1, bonus=False)
    assert last.reply.bonus is None
    assert sources_of(last) == ["mtp", "mtp"]


def test_bytes_of_the_papers_tree_and_reply() -> None:
    # 32 nodes: "about 130 B" up; at 4.71 tokens a round about 34.6 KB down, 6,144 a token and 2 x 2,816
    tree = DraftTree((1, *range(2, 34)), (None, *[0] * 32), (0.0,) * 33, ("root", *["slm"] * 32))
    rows = 100
    update = HeadUpdate(
        np.zeros(2816),
        np.zeros(2816),
        {"sliding": np.zeros((8, rows, 256)), "full": np.zeros((2, rows, 512))},
        {"sliding": np.zeros((8, rows, 256)), "full": np.zeros((2, rows, 512))},
    )
    one = Round(tree, Reply((), (5,), finished=False, update=update), 1.0)
    assert bytes_up(one) == 128
    assert bytes_down(one, with_update=False) == 3
    assert bytes_down(one, with_update=True) == 3 + rows * 6144 + 2 * 2816


@pytest.mark.parametrize(("name", "travels"), [("hyco", True), ("cloud-mtp", False), ("specedge", False)])
def test_only_a_head_on_the_device_is_sent_its_state(name: str, travels: bool) -> None:
    assert head_on_device(load_config(name)) is travels
