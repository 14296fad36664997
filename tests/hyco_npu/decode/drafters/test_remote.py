"""A drafter behind a connection drafts what the same drafter does in this process; the state arrives bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from device_runner.errors import RunnerError
from device_runner.serve_client import connected
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.drafters.remote import RemoteDrafter, tree_of
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.protocols import HeadUpdate, Reply
from tests.device_runner.native.recorded import Sizes, TextRecorder, open_session
from tests.device_runner.serving_stand_in import stand_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

CONFIG = {"tree": {"nodes": 8}, "mtp": {}, "slm": {"children": 2}}


def served(drafter: Any) -> Callable[[dict[str, Any], dict[str, np.ndarray]], dict[str, Any]]:
    """What a runner answers for a Python drafter that stands for its own; parts of a draft take 2 ms."""
    sent: list[Any] = []

    def reply_of(event: dict[str, Any], arrays: dict[str, np.ndarray]) -> Reply:
        kinds = {
            part: {
                name.removeprefix(f"update.0.{part}_"): array
                for name, array in arrays.items()
                if name.startswith(f"update.0.{part}_")
            }
            for part in ("keys", "values")
        }
        update = HeadUpdate(arrays["update.0.hidden"], arrays["update.0.embedding"], kinds["keys"], kinds["values"])
        return Reply(tuple(event.get("accepted", ())), tuple(event["emitted"]), False, update)

    def answer(event: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        if event["event"] == "begin":
            drafter.begin(event["token_ids"], reply_of(event, arrays))
        elif event["event"] == "draft":
            sent.append(drafter.draft(event["max_depth"]))
            fields = ("token_ids", "parents", "scores", "sources")
            return {"tree": {name: getattr(sent[-1], name) for name in fields}, "parts": {"topk": 2.0}}
        elif event["event"] == "commit":
            drafter.commit(sent[-1], reply_of(event, arrays))
        return {"ok": True}

    return answer


def test_the_trees_are_those_of_the_same_drafter_here(tmp_path: Path) -> None:
    here = open_session(tmp_path / "here", Sizes(), CONFIG)
    there = open_session(tmp_path / "there", Sizes(), CONFIG)
    clock = Clock()
    with stand_in(served(there.drafter)) as port, connected(port, "phone", 20.0) as client:
        remote = RemoteDrafter(client, here.config, clock)
        text = TextRecorder(here, seed=3)
        pair = Both(here.drafter, remote)
        object.__setattr__(text.session, "drafter", pair)
        text.begin(9)
        for _ in range(6):
            text.commit(text.draft(5), deepest=True)
        text.begin(3)
        text.draft(4)
    assert [tree.token_ids for tree in pair.remote_trees] == [tree.token_ids for tree in text.trees]
    assert [tree.parents for tree in pair.remote_trees] == [tree.parents for tree in text.trees]
    assert [tree.scores for tree in pair.remote_trees] == [tree.scores for tree in text.trees]
    phases = clock.take()
    # what the runner accounts for is its own, and no longer the link's
    assert phases["device.topk"] == pytest.approx(7 * 0.002)
    assert set(phases) == {"device.link", "device.topk"}


class Both:
    """Two drafters that are told the same; the first one's trees are the text's."""

    def __init__(self, drafter: Any, remote: RemoteDrafter) -> None:
        self.drafter, self.remote, self.remote_trees = drafter, remote, []

    def begin(self, token_ids: Any, reply: Reply) -> None:
        self.drafter.begin(token_ids, reply)
        self.remote.begin(token_ids, reply)

    def draft(self, max_depth: int) -> Any:
        self.remote_trees.append(self.remote.draft(max_depth))
        return self.drafter.draft(max_depth)

    def commit(self, tree: Any, reply: Reply) -> None:
        self.drafter.commit(tree, reply)
        self.remote.commit(tree, reply)


def test_a_verifier_without_a_head_is_an_error(tmp_path: Path) -> None:
    here = open_session(tmp_path, Sizes(), CONFIG)
    with stand_in(lambda event, arrays: {"ok": True}) as port, connected(port, "phone", 5.0) as client:
        remote = RemoteDrafter(client, here.config, Clock())
        with pytest.raises(DecodeError, match="no state for a head"):
            remote.begin([1], Reply((), (2,), False))


@pytest.mark.parametrize("answer", [{"ok": True}, {"tree": {"token_ids": [1]}}, {"tree": None}])
def test_an_answer_without_a_tree_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(RunnerError, match="holds no tree"):
        tree_of(answer)
