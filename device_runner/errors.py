"""The errors of `device_runner`.

HycoError                        the work failed (exit code 1)
├── UsageError                   wrong use (exit code 2)
│   └── DeviceChoiceError        no device, or several, answer to what was asked for
└── DeviceError
    ├── AdbMissingError          the adb client is not installed, or cannot be started
    ├── AdbError                 adb refused or failed; the message is its own
    ├── DeviceStateError         adb sees the device but cannot use it: unauthorized, offline, ...
    ├── DeviceBusyError          another command of this machine uses the device
    ├── LinkLostError            a call ended without its exit code: what came before is not a result
    ├── CallTimeoutError         a call did not end, or fell silent, within its time
    ├── CommandError             a command on the device ended with another exit code than 0
    ├── RunnerError              the native runner failed, in its own words, or said what nobody asked it for
    ├── PushError                a file did not arrive as it was sent
    │   └── NoSpaceError         the device has no room for it
    ├── FactError                the device did not tell what a measurement must know
    │   └── ThermalGateError     the device did not cool down within its time
    └── RecordingError           a recorded session is damaged, or does not hold the call that was made
"""

from __future__ import annotations

from quant.errors import HycoError, UsageError


class DeviceChoiceError(UsageError):
    """No device, or more than one, fits the choice; the message lists what is connected."""


class DeviceError(HycoError):
    """Something between this machine and the device failed."""


class AdbMissingError(DeviceError):
    """The adb client is not installed, or cannot be started."""


class AdbError(DeviceError):
    """The adb client or its server failed, in its own words."""


class DeviceStateError(DeviceError):
    """A device is listed but not usable; the message says what its state asks for."""


class DeviceBusyError(DeviceError):
    """Another command of this machine uses the device."""


class LinkLostError(DeviceError):
    """A call ended without its exit code, so whatever it printed is not a result."""


class CallTimeoutError(DeviceError):
    """A call did not end, or printed nothing, within its time."""


class CommandError(DeviceError):
    """A command on the device failed."""


class RunnerError(DeviceError):
    """The native runner failed, or its output is not what a runner prints; the message has its own words."""


class PushError(DeviceError):
    """A file did not arrive as it was sent."""


class NoSpaceError(PushError):
    """The device has no room for what is to be pushed."""


class FactError(DeviceError):
    """The device did not tell what a measurement must know."""


class ThermalGateError(FactError):
    """The device did not cool down within the gate's time."""


class RecordingError(DeviceError):
    """A recorded session is damaged, or another call was made than the one it holds."""
