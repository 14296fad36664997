"""`hyco-npu doctor`: looks at this machine and at a phone for what keeps the product from working.

    check             what a check gives; a broken world is a finding, not an exception
    python_packages, compiler, toolchain, resources          this machine
    adb_server, device_choice                                the way to a phone
    pieces                                                   bundles and the runner's folder
    phone_identity, phone_libraries, phone_access, phone_state   the phone
    run               all of them, in order

Nothing is changed on either side. This package does not know how its results are shown.
"""

from __future__ import annotations

from device_runner.doctor.check import Check, Status
from device_runner.doctor.run import Options, Report, run_doctor

__all__ = ["Check", "Options", "Report", "Status", "run_doctor"]
