"""The host's end of a serving runner, against a stand-in that answers as told."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from device_runner.errors import CallTimeoutError, LinkLostError, RunnerError
from device_runner.serve_client import connected
from tests.device_runner.serving_stand_in import frame, stand_in


def test_events_and_arrays_arrive_as_they_were_sent() -> None:
    seen: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []

    def answer(event: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        seen.append((event, arrays))
        return {"ok": True, "number": len(seen)}

    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with stand_in(answer) as port, connected(port, "phone", 5.0) as client:
        first = client.request({"event": "begin", "token_ids": [1, 2]}, {"rows": whole[:, 1:], "hidden": whole[0, 0]})
        second = client.request({"event": "draft", "max_depth": 3})
    assert (first, second) == ({"ok": True, "number": 1}, {"ok": True, "number": 2})
    assert [event for event, _ in seen] == [
        {"event": "begin", "token_ids": [1, 2]},
        {"event": "draft", "max_depth": 3},
    ]
    np.testing.assert_array_equal(seen[0][1]["rows"], whole[:, 1:])
    np.testing.assert_array_equal(seen[0][1]["hidden"], whole[0, 0])
    assert list(seen[1][1]) == ["none"]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"", LinkLostError, "broke in the middle of a round"),
        (frame(b"{}")[:9], LinkLostError, "broke in the middle of a round"),
        (frame(b"no json"), RunnerError, "no JSON: b'no json'"),
        (frame(b"[1]"), RunnerError, "no JSON object"),
        (b"HTTP/1.1", RunnerError, "it is no hyco_runner"),
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes, kind: type[Exception], words: str) -> None:
    with (
        stand_in(lambda event, arrays: answer) as port,
        connected(port, "phone", 5.0) as client,
        pytest.raises(kind, match=words),
    ):
        client.request({"event": "draft"})


def test_a_refusal_has_the_runners_words() -> None:
    with (
        stand_in(lambda event, arrays: {"error": "token 9 has no row"}) as port,
        connected(port, "S26", 5.0) as client,
        pytest.raises(RunnerError, match="S26 refused 'begin': token 9 has no row"),
    ):
        client.request({"event": "begin"})


def test_no_answer_in_time_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with connected(port, "S26", 0.2) as client, pytest.raises(CallTimeoutError, match=r"'draft' within 0\.2 s"):
            client.request({"event": "draft"})


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with (
        pytest.raises(LinkLostError, match=f"nothing listens for the runner on S26 at port {port}"),
        connected(port, "S26", 1.0),
    ):
        pass
