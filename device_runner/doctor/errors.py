"""The errors of `device_runner.doctor`; each becomes a check's result, none leaves the package.

DeviceError
└── UnansweredError    an earlier call of this examination got no answer, so this one was not made
"""

from __future__ import annotations

from device_runner.errors import DeviceError


class UnansweredError(DeviceError):
    """The device is not asked again after a call that it did not answer; the check counts as not made."""
