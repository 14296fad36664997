"""A runner that serves drafts on a device, and the connection to it, for as long as a context lasts.

    push -> hyco_runner serve -> its port -> a forward to it -> a client

When the client goes, the runner ends by itself. A connection that breaks is explained by what the runner printed.
"""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from device_runner.errors import DeviceError, LinkLostError, RunnerError
from device_runner.push import PushOptions, pushed_folder
from device_runner.runner_command import SILENCE_S
from device_runner.serve_client import connected
from device_runner.transport import Timeout

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from device_runner.runner_command import RunnerSetup
    from device_runner.serve_client import ServeClient
    from device_runner.staging import StagedPair
    from device_runner.transport import Transport

PUSH_NAME = "serve"
_CALL = Timeout(30.0)
_LONGEST_S = 24 * 3600.0
_ANSWER_S = {"cpu": 300.0, "simulator": 1800.0, "htp": 60.0}
"""How long an answer may take; a round of the simulator may take minutes."""
CLIENT_S = 30
"""How long the runner waits for the connection, once its graphs are open."""


@contextmanager
def serving(
    transport: Transport, folder: Path, setup: RunnerSetup, pair: StagedPair, *, keep: bool = False
) -> Iterator[ServeClient]:
    """Push a staged folder, start its runner and connect.

    Raises DeviceError: a push, a link or a runner that failed, here or in the middle of the context.
    """
    with pushed_folder(transport, folder, PushOptions(PUSH_NAME, keep)) as pushed:
        command = setup.command("serve", pushed.remote, pair, "--client-timeout", str(CLIENT_S))
        # Lines are waited for before and after the drafts alone, so silence in between is none.
        with closing(transport.stream(command, Timeout(_LONGEST_S, SILENCE_S[setup.provider]))) as printed:
            port = _listening(printed, transport.name)
            with transport.forward(port, _CALL) as local:
                try:
                    with connected(local, transport.name, _ANSWER_S[setup.provider]) as client:
                        yield client
                except LinkLostError as error:
                    raise _explained(printed, error) from error
            _require_end(printed, transport.name)


def _listening(printed: Generator[str, None, None], name: str) -> int:
    """The runner's port, once its graphs are open."""
    try:
        for fields in _objects(printed):
            if "error" in fields:
                raise RunnerError(f"the runner on {name} did not start: {fields['error']}")
            if "listening" in fields:
                return int(fields["listening"]["port"])
    except (TypeError, KeyError, ValueError) as error:
        raise RunnerError(f"the runner on {name} printed no port where it should; is it of another version?") from error
    raise RunnerError(f"the runner on {name} ended before it listened")


def _explained(printed: Generator[str, None, None], lost: LinkLostError) -> DeviceError:
    """The runner's own words for a connection that broke, where it still has some."""
    try:
        for fields in _objects(printed):
            if "error" in fields:
                return RunnerError(f"{lost}; the runner says: {fields['error']}")
    except DeviceError as error:
        return LinkLostError(f"{lost}; {error}")
    return lost


def _require_end(printed: Generator[str, None, None], name: str) -> None:
    end = None
    for fields in _objects(printed):
        if "error" in fields:
            raise RunnerError(f"the runner on {name} failed at the end: {fields['error']}")
        end = fields.get("exit") if fields.get("end") is True else end
    if end != 0:
        raise RunnerError(f"the runner on {name} did not end as it should: {end!r} where 0 is due")


def _objects(printed: Generator[str, None, None]) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines; native libraries print others beside them."""
    for line in printed:
        if line.startswith("{"):
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if isinstance(fields, dict):
                yield fields
