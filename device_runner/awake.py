"""Keeping a phone awake while it is measured: one that sleeps lowers its clocks and may stop programs.

`svc power stayon usb` holds while the phone is plugged in; the setting that was there before is put back at the end.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from device_runner.errors import DeviceError
from device_runner.transport import Command, Timeout, Transport

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = logging.getLogger(__name__)

_CALL = Timeout(20.0)
_SETTING = ("global", "stay_on_while_plugged_in")
_STAY_ON = Command(("svc", "power", "stayon", "usb"))
_LET_SLEEP = Command(("svc", "power", "stayon", "false"))


@contextmanager
def kept_awake(transport: Transport) -> Iterator[bool]:
    """Keep the phone awake inside the context; False where it would not: its user has to, by hand.

    What fails at the end is logged: a link that is gone has raised its own error already.
    """
    before = transport.shell(Command(("settings", "get", *_SETTING)), _CALL)
    switched = transport.shell(_STAY_ON, _CALL)
    if switched.exit_code != 0:
        _LOG.warning("%s cannot be kept awake (`%s`): keep its screen on by hand", transport.name, _STAY_ON)
    try:
        yield switched.exit_code == 0
    finally:
        if switched.exit_code == 0:
            _restore(transport, before.stdout.strip() if before.exit_code == 0 else "")


def _restore(transport: Transport, before: str) -> None:
    """A number is what `settings` had; without one the phone may sleep again."""
    command = Command(("settings", "put", *_SETTING, before)) if before.isdigit() else _LET_SLEEP
    try:
        transport.shell(command, _CALL).checked()
    except DeviceError as error:
        _LOG.warning(
            "%s may stay awake on USB from now on: `adb shell %s` ends that (%s)", transport.name, command, error
        )
