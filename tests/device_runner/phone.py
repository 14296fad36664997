"""The phone behind the test daemon: a temporary folder for its files, tables for what it says, and its faults."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROPERTIES = {
    "ro.product.name": "e3q",
    "ro.product.model": "SM_S948",
    "ro.product.device": "e3q",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.soc.model": "SM8850",
    "ro.build.version.release": "16",
    "ro.build.fingerprint": "samsung/e3q/e3q:16/BP2A/1:user/release-keys",
}
# The folders of a phone that commands name; they lie below the phone's root instead.
_MAPPED = ("/data/local/tmp", "/sys/devices")
_TABLE_SCRIPT = '#!/bin/sh\nif [ -f "{folder}/$1" ]; then cat "{folder}/$1"; else echo "Can\'t find service: $1"; fi\n'


class Authorization(Enum):
    """What the phone does with a client: let it in, show its dialog and get a yes, or never get one."""

    OPEN = "open"
    ACCEPTS = "accepts"
    REFUSES = "refuses"


@dataclass
class Faults:
    """What goes wrong. Counts are in bytes.

    legacy: the adb protocol before Android 7, one stream and no exit codes. lose_exit_code: each command ends with 0.
    drop_shell_after, drop_push_after: cut the link there. mute: after a cut, answer no new connection.
    no_space_after: the file system is full. corrupt_push: a file arrives with one byte changed. hang: a command says
    nothing and does not end.
    """

    legacy: bool = False
    lose_exit_code: bool = False
    crlf: bool = False
    hang: bool = False
    mute: bool = False
    corrupt_push: bool = False
    drop_shell_after: int | None = None
    drop_push_after: int | None = None
    no_space_after: int | None = None


@dataclass
class Phone:
    """A phone's root folder, tables and faults.

    keys: the public keys it knows. services: the calls it got, `shell,v2:...`. signed_in: how often a client proved
    that it holds a key.
    """

    root: Path
    authorization: Authorization = Authorization.OPEN
    faults: Faults = field(default_factory=Faults)
    properties: dict[str, str] = field(default_factory=lambda: dict(PROPERTIES))
    keys: set[tuple[int, int]] = field(default_factory=set)
    services: list[str] = field(default_factory=list)
    signed_in: int = 0

    def __post_init__(self) -> None:
        self.work_dir.mkdir(parents=True)
        (self.root / "bin").mkdir()
        tables = self.root / "dumpsys"
        tables.mkdir()
        self.set_command("dumpsys", _TABLE_SCRIPT.format(folder=tables))
        self.set_properties()
        self.set_command("getenforce", "#!/bin/sh\necho Enforcing\n")

    @property
    def work_dir(self) -> Path:
        """Where /data/local/tmp lies on this machine."""
        return self.root / "data/local/tmp"

    @property
    def banner(self) -> bytes:
        """What it says of itself when a client connects."""
        names = ("ro.product.name", "ro.product.model", "ro.product.device")
        features = "" if self.faults.legacy else "shell_v2,cmd,stat_v2,fixed_push_mkdir"
        properties = "".join(f"{name}={self.properties[name]};" for name in names)
        return f"device::{properties}features={features}".encode()

    def set_command(self, name: str, text: str) -> None:
        """Give the phone a program, found before those of this machine."""
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def set_properties(self, **changes: str) -> None:
        """Write what `getprop` prints; names have _ for dots here."""
        self.properties |= {name.replace("_", "."): value for name, value in changes.items()}
        table = "".join(f"[{name}]: [{value}]\n" for name, value in self.properties.items())
        self.set_command("getprop", f"#!/bin/sh\nprintf %s {shlex.quote(table)}\n")

    def set_dumpsys(self, service: str, text: str) -> None:
        """Write what `dumpsys SERVICE` prints."""
        partial = self.root / "dumpsys" / f".{service}"
        partial.write_text(text)
        os.replace(partial, self.root / "dumpsys" / service)

    def path(self, remote: str) -> Path:
        """Where a path of the phone lies on this machine."""
        return self.root / remote.lstrip("/")

    def here(self, command: str) -> str:
        """A shell text with the phone's folders replaced by ours; the root holds nothing that a shell would read."""
        for folder in _MAPPED:
            command = command.replace(folder, f"{self.root}{folder}")
        return command
