"""The errors of the native runner's build.

DeviceError
└── NativeBuildError             cmake, a compiler or a header is missing, or the sources do not compile
"""

from __future__ import annotations

from device_runner.errors import DeviceError


class NativeBuildError(DeviceError):
    """The native runner could not be built; the message holds the tool's own last words."""
