"""The phone under examination."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from device_runner.adb import AdbTransport
from device_runner.doctor.errors import UnansweredError
from device_runner.errors import CallTimeoutError, DeviceStateError, LinkLostError
from device_runner.transport import Timeout

if TYPE_CHECKING:
    from device_runner.transport import Command, ShellResult

CALL = Timeout(20.0)


@dataclass(frozen=True)
class AskedOnce(AdbTransport):
    """A phone that is not asked again after a call that it did not answer: each would only take its whole time too."""

    unanswered: list[str] = field(default_factory=list)

    def shell(self, command: Command, timeout: Timeout) -> ShellResult:
        """Run a command; see Transport.

        Raises:
            UnansweredError: an earlier call got no answer.
        """
        if self.unanswered:
            raise UnansweredError(f"not asked: an earlier call got no answer ({self.unanswered[0]})")
        try:
            return super().shell(command, timeout)
        except (CallTimeoutError, DeviceStateError, LinkLostError) as error:
            self.unanswered.append(str(error))
            raise
