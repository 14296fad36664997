"""The errors of the native runner's build and of the folder that it ends in.

DeviceError
├── NativeBuildError             cmake, a compiler or a header is missing, or the sources do not compile
├── PieceError                   a library that belongs beside the runner is missing, or is not the right one
└── RunnerFolderError            a runner's folder is absent, damaged, or cannot be written
"""

from __future__ import annotations

from device_runner.errors import DeviceError


class NativeBuildError(DeviceError):
    """The native runner could not be built; the message holds the tool's own last words."""


class PieceError(DeviceError):
    """A library beside the runner is missing, of another machine or of another build; the message names its source."""


class RunnerFolderError(DeviceError):
    """A runner's folder is not what its runner.json says, or cannot be put where it is asked for."""
