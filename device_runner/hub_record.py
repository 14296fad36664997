"""What was already sent to AI Hub: uploaded binaries and jobs under way, so that a run which broke off goes on.

One small JSON file. A binary is known by its hash and the service's address: a second run uploads nothing. A job is
forgotten when it has ended, so that a finished measurement is not taken for a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from calibration.jsonfile import read_object, write_object
from device_runner.graph_errors import HubError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION = 1
Section = Literal["models", "jobs"]


@dataclass(frozen=True)
class HubRecord:
    """The file; `path` None keeps nothing."""

    path: Path | None

    def get(self, section: Section, key: str) -> str | None:
        """The id that was written under a key; raises HubError for a file that is no record."""
        found = self._fields()[section].get(key)
        return found if isinstance(found, str) else None

    def put(self, section: Section, key: str, identifier: str | None) -> None:
        """Write an id, or forget it with None; the file is replaced in one step."""
        if self.path is None:
            return
        fields = self._fields()
        if identifier is None:
            fields[section].pop(key, None)
        else:
            fields[section][key] = identifier
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_object(self.path, fields)

    def _fields(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "models": {}, "jobs": {}}
        if self.path is None or not self.path.exists():
            return empty
        fields = read_object(self.path, SCHEMA_VERSION, HubError)
        if not all(isinstance(fields.get(section), dict) for section in ("models", "jobs")):
            raise HubError(f"{self.path} is no record of uploads to AI Hub: remove it")
        return fields
