"""A drafter on a device: its rounds are drafted by the native runner, this end only carries them.

The runner holds graphs, tables and windows; the update of every reply travels to it, a tree comes back. Its own
account of a round's time is booked to the text's clock, and what is left of the wait to the link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from device_runner.errors import RunnerError
from device_runner.serve_client import SCHEMA_VERSION
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.tree import DraftTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from device_runner.serve_client import ServeClient
    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.protocols import HeadUpdate, Reply

LINK = "device.link"
"""Waiting for the device, less what its runner accounts for."""


class RemoteDrafter:
    """`Drafter` on the other side of a connection; one for a text, texts follow each other on one connection."""

    def __init__(self, client: ServeClient, config: DecodeConfig, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._request(
            {"event": "open", "schema_version": SCHEMA_VERSION, "config": config.model_dump(mode="json")}, None
        )

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """Send a prompt with the reply to it."""
        self._request({"event": "begin", "token_ids": list(map(int, token_ids)), **_emitted(reply)}, reply)

    def draft(self, max_depth: int) -> DraftTree:
        """Have a tree drafted."""
        return tree_of(self._request({"event": "draft", "max_depth": max_depth}, None))

    def while_waiting(self) -> None:
        """Nothing: the runner does not draft ahead."""

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """Send the answer to the last tree."""
        self._request({"event": "commit", "accepted": list(reply.accepted), **_emitted(reply)}, reply)

    def _request(self, event: Mapping[str, Any], reply: Reply | None) -> dict[str, Any]:
        arrays = {} if reply is None else _arrays(reply.update)
        with self._clock.phase(LINK):
            answer = self._client.request(event, arrays)
        for part, milliseconds in answer.get("parts", {}).items():
            self._clock.move(LINK, f"device.{part}", milliseconds / 1e3)
        return answer


def tree_of(answer: Mapping[str, Any]) -> DraftTree:
    """The tree of a runner's answer; raises RunnerError where there is none, DecodeError for rows that are no tree."""
    try:
        tree = answer["tree"]
        return DraftTree(*(tuple(tree[name]) for name in ("token_ids", "parents", "scores", "sources")))
    except (KeyError, TypeError) as error:
        raise RunnerError(f"the runner answered a draft with {answer!r}, which holds no tree") from error


def _emitted(reply: Reply) -> dict[str, Any]:
    return {"emitted": list(map(int, reply.emitted)), "update": 0}


def _arrays(update: HeadUpdate | None) -> dict[str, np.ndarray]:
    if update is None:
        raise DecodeError("the verifier hands out no state for a head; drafting on a device needs a Gemma 4 verifier")
    return update.named(0)
