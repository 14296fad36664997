"""A scripted adb client, for what a real one says only of a real fault: USB permissions, exit code 0 after an error.

It logs its arguments, so that quoting and `-s` can be checked. Its device is a folder of this machine.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.adb import AdbClient

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = """#!/bin/bash
{{ for argument in "$@"; do printf '%s\\x1f' "$argument"; done; printf '\\x1e'; }} >> {log}
[ "$1" = -s ] && shift 2
case "$1" in
{cases}
  shell) shift; text="$*"; exec bash -c "${{text//\\/data\\/local\\/tmp/{device}}}";;
esac
exit 0
"""


@dataclass(frozen=True)
class FakeAdb:
    """The script as a client, the log of its calls, and the folder that is its device's /data/local/tmp."""

    client: AdbClient
    log: Path
    device: Path

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call so far."""
        return [call.split("\x1f")[:-1] for call in self.log.read_text().split("\x1e")[:-1]]


def write_fake_adb(folder: Path, **answers: str) -> FakeAdb:
    """Write a client that answers `devices`, `push`, `shell`, ... with a piece of bash each.

    Where `shell` has none it runs on this machine, with the device's folder in place of /data/local/tmp.
    """
    device = folder / "device"
    device.mkdir(parents=True, exist_ok=True)
    log, script = folder / "calls.log", folder / "adb"
    log.write_text("")
    cases = "\n".join(f"  {name}) {answer}\n  exit $?;;" for name, answer in answers.items())
    script.write_text(_SCRIPT.format(log=shlex.quote(str(log)), cases=cases, device=device))
    script.chmod(0o755)
    return FakeAdb(AdbClient(str(script)), log, device)
