"""`hyco_runner serve` with real graphs, spoken to over a socket: state in, trees out."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save

from .real_bundles import Texts, engine_arguments, make_pair, record_texts
from .test_replay import CONFIGS, assert_same_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hyco_npu.decode.protocols import HeadUpdate

    from .conftest import Native

pytestmark = pytest.mark.native
TIMEOUT_S = 60
OPEN = {"event": "open", "schema_version": 1}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    folder = tmp_path_factory.mktemp("served")
    return record_texts(make_pair(folder, CONFIGS["guesses"]), folder / "rounds.safetensors", 8)


def payload(event: dict[str, Any], update: HeadUpdate | None = None) -> bytes:
    arrays: dict[str, np.ndarray] = {"none": np.zeros(1, np.uint8)}
    if update is not None:
        arrays = {"update.0.hidden": update.hidden, "update.0.embedding": update.embedding}
        for kind in update.keys:
            arrays[f"update.0.keys_{kind}"] = update.keys[kind]
            arrays[f"update.0.values_{kind}"] = update.values[kind]
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"event": json.dumps(event)})


@dataclass
class Client:
    """A connection that speaks frames, and the runner behind it."""

    connection: socket.socket
    process: subprocess.Popen[str]
    port: int

    def send(self, content: bytes) -> None:
        self.connection.sendall(struct.pack("<Q", len(content)) + content)

    def receive(self) -> dict[str, Any]:
        (length,) = struct.unpack("<Q", self._read(8))
        answer: dict[str, Any] = json.loads(self._read(length))
        return answer

    def ask(self, event: dict[str, Any], update: HeadUpdate | None = None) -> dict[str, Any]:
        self.send(payload(event, update))
        return self.receive()

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and last lines, once the runner has ended by itself."""
        assert self.process.stdout is not None
        lines = [json.loads(line) for line in self.process.stdout]
        return self.process.wait(TIMEOUT_S), lines

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self.connection.recv(size - len(content))
            assert part, "the runner closed the connection"
            content += part
        return content


@contextmanager
def serving(native: Native, texts: Texts, **options: object) -> Iterator[Client]:
    command = [str(native.runner), "serve", *engine_arguments(texts.session, "cpu", **options)]
    errors = native.folder / "serve.stderr"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(5)]
            assert [next(iter(line)) for line in lines] == ["runner", "load", "load", "load", "listening"]
            port = lines[-1]["listening"]["port"]
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
                yield Client(connection, process, port)
        finally:
            process.kill()
    assert "Sanitizer" not in errors.read_text(), errors.read_text()


def test_trees_are_those_of_python(native: Native, texts: Texts) -> None:
    """Three texts over one connection, each with a fresh drafter."""
    trees = iter(texts.trees)
    with serving(native, texts) as client:
        for event, update in texts.requests:
            answer = client.ask(event, update)
            assert answer["total_ms"] >= sum(answer["parts"].values())
            if event["event"] == "draft":
                assert_same_tree(answer["tree"], next(trees))
                assert {"mtp_step_1", "slm_pass_1"} <= answer["parts"].keys()
            else:
                assert answer["ok"] is True
        assert next(trees, None) is None
        client.connection.close()
        assert client.end() == (0, [{"end": True, "exit": 0}])


def test_a_new_configuration_counts(native: Native, texts: Texts) -> None:
    """The same text under another configuration is another draft."""
    (opened, _), (begun, update), (draft, _) = texts.requests[:3]
    smaller = json.loads(json.dumps(opened))
    smaller["config"]["tree"]["nodes"] = 5
    with serving(native, texts) as client:
        sizes = []
        for event in (opened, smaller, opened):
            client.ask(event)
            client.ask(begun, update)
            sizes.append(len(client.ask(draft)["tree"]["token_ids"]))
        assert sizes == [17, 6, 17]


def test_it_listens_on_the_loopback_alone(native: Native, texts: Texts) -> None:
    with serving(native, texts) as client:
        with open("/proc/net/tcp") as table:
            rows = [line.split()[1].split(":") for line in table.readlines()[1:]]
        assert {address for address, port in rows if int(port, 16) == client.port} == {"0100007F"}


def test_it_takes_the_port_that_is_asked_for(native: Native, texts: Texts) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, lines = native.run("serve", *engine_arguments(texts.session, "cpu", port=port))
        assert code == 1
        assert re.search(rf"port {port} .* Address already in use", lines[-2]["error"])
    with serving(native, texts, port=port) as client:
        assert client.port == port


def _update_without(update: HeadUpdate, name: str) -> bytes:
    arrays = {"update.0.hidden": update.hidden, "update.0.embedding": update.embedding}
    arrays |= {f"update.0.keys_{kind}": array for kind, array in update.keys.items()}
    arrays |= {f"update.0.values_{kind}": array for kind, array in update.values.items()}
    del arrays[name]
    return save(arrays, {"event": json.dumps({"event": "begin", "token_ids": [1, 2], "emitted": [3]})})


BAD_REQUESTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read as a safetensors file"),
    "text": (b"hello, this is a text and no tensor", "cannot be read as a safetensors file"),
    "header beyond the end": (struct.pack("<Q", 1 << 60) + b"{}", "header would be"),
    "no event": (save({"none": np.zeros(1, np.uint8)}), "not JSON"),
    "unknown event": (payload({"event": "fly"}), 'event "fly" is unknown'),
    "another schema": (payload({**OPEN, "schema_version": 9, "config": {}}), "not of schema 1"),
    "no configuration": (payload({**OPEN, "config": {}}), "lacks the field tree"),
    "draft before begin": (payload({"event": "draft", "max_depth": 4}), "no reply"),
    "negative depth": (payload({"event": "draft", "max_depth": -4}), "-4 where a count is needed"),
    "begin without state": (payload({"event": "begin", "token_ids": [1], "emitted": [2]}), "no tensor update.0.hidden"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_request_that_is_none_is_answered_and_ends_it(native: Native, texts: Texts, name: str) -> None:
    content, words = BAD_REQUESTS[name]
    with serving(native, texts) as client:
        client.ask(texts.requests[0][0])
        client.send(content)
        answer = client.receive()
        assert words in answer["error"]
        assert client.connection.recv(1) == b""
        assert client.end() == (1, [{"error": answer["error"]}, {"end": True, "exit": 1}])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"accepted": [1, 1]}, "rise"),
        ({"accepted": [99], "emitted": [5, 6]}, "row 99"),
        ({"emitted": []}, "emits no token"),
        ({"emitted": [10**9]}, "1000000000"),
    ],
)
def test_a_reply_that_cannot_be_is_answered(native: Native, texts: Texts, change: dict[str, Any], words: str) -> None:
    with serving(native, texts) as client:
        for event, update in texts.requests[:3]:
            assert "error" not in client.ask(event, update)
        event, update = texts.requests[3]
        wrong = {**event, "accepted": [], "emitted": [5, 6, 7], **change}
        answers = [client.ask(wrong, update)]
        if "error" not in answers[0]:  # a token without a row shows when it is run
            answers.append(client.ask({"event": "draft", "max_depth": 4}))
        assert words in answers[-1]["error"]
        assert client.end()[0] == 1


def test_the_first_request_opens(native: Native, texts: Texts) -> None:
    with serving(native, texts) as client:
        assert "must be open, not draft" in client.ask({"event": "draft", "max_depth": 4})["error"]


def test_an_update_that_lacks_a_part_is_refused(native: Native, texts: Texts) -> None:
    update = texts.requests[1][1]
    assert update is not None
    with serving(native, texts) as client:
        client.ask(texts.requests[0][0])
        client.send(_update_without(update, "update.0.values_full"))
        assert "no tensor update.0.values_full" in client.receive()["error"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x05\x00\x00", "inside the length"),
        (struct.pack("<Q", 500) + b"half", "after 4 of a frame's 500 bytes"),
        (struct.pack("<Q", 1 << 62), "it is no request"),
    ],
)
def test_a_connection_that_ends_inside_a_frame(native: Native, texts: Texts, content: bytes, words: str) -> None:
    with serving(native, texts) as client:
        client.connection.sendall(content)
        client.connection.shutdown(socket.SHUT_WR)
        code, lines = client.end()
        assert code == 1
        assert words in lines[-2]["error"]
        assert lines[-1] == {"end": True, "exit": 1}


def test_a_client_that_goes_without_its_answers(native: Native, texts: Texts) -> None:
    """The runner writes into a connection that is closed: an error with an end, not a signal."""
    with serving(native, texts) as client:
        for event, update in texts.requests[:60]:
            client.send(payload(event, update))
        # resets the connection instead of ending it in order
        client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.connection.close()
        code, lines = client.end()
        assert code == 1
        assert re.search("the connection broke|the answer cannot be sent", lines[-2]["error"])
        assert lines[-1] == {"end": True, "exit": 1}


def test_a_client_that_never_comes(native: Native, texts: Texts) -> None:
    command = [native.runner, "serve", *engine_arguments(texts.session, "cpu", client_timeout=1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-2:] == [{"error": "no client came within 1 s"}, {"end": True, "exit": 1}]
