"""The errors of measuring graphs one by one, on a hosted phone or with Qualcomm's own tool.

HycoError
├── UsageError
│   └── HubTokenError            no token of Qualcomm AI Hub, or one that it does not take
└── DeviceError
    ├── HubError                 AI Hub refused, failed, or gave a profile that lacks a figure
    │   ├── HubJobError          a profile job failed on the hosted phone
    │   └── HubTimeoutError      a job did not end within its time
    └── NetRunError              qnn-net-run or a tool beside it failed, or printed something else than expected
        └── SdkError             the QAIRT SDK's folder lacks a file, or does not tell its build
"""

from __future__ import annotations

from device_runner.errors import DeviceError
from quant.errors import UsageError


class HubTokenError(UsageError):
    """There is no token of Qualcomm AI Hub; the message says how to get and set one."""


class HubError(DeviceError):
    """AI Hub refused a request or failed, or its answer lacks a figure."""


class HubJobError(HubError):
    """A profile job failed; the message has the service's reason and the job's address."""


class HubTimeoutError(HubError):
    """A job did not end within its time; it goes on at the service."""


class NetRunError(DeviceError):
    """qnn-net-run or one of the SDK's host tools failed, or their output lacks a figure."""


class SdkError(NetRunError):
    """The folder given as QAIRT SDK cannot be used."""
