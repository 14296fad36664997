"""Nodes, SELinux and its denials, in the words of real phones' logs, over the real adb."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from device_runner.doctor.check import Status
from device_runner.doctor.phone_access import NODES, selinux_denials, selinux_mode, unsigned_domain

if TYPE_CHECKING:
    from device_runner.doctor.device import AskedOnce
    from tests.device_runner.phone import Phone

NODE, SECURE = "/data/local/tmp/dev/adsprpc-smd", "/data/local/tmp/dev/adsprpc-smd-secure"

# In the form of lines that phones print (qualcomm/ai-hub-apps issue 41, pytorch/executorch issue 12537): shortened,
# with our runner in the place of those apps.
FIRST = "--------- beginning of main\n"
OTHERS = (
    "05-14 19:55:39.011  9985  9985 W pool-2-thread-1: type=1400 audit(0.0:1984): avc:  denied  { read } for  "
    'name="adsprpc-smd-secure" dev="tmpfs" ino=16762 scontext=u:r:untrusted_app:s0:c120,c256,c512,c768 '
    "tcontext=u:object_r:vendor_xdsp_device:s0 tclass=chr_file permissive=0 app=com.example\n"
)
OURS = (
    "07-21 12:16:19.428 11115 11115 W hyco_runner: type=1400 audit(0.0:2018): avc:  denied  { read } for  "
    'name="adsprpc-smd-secure" dev="tmpfs" ino=842 scontext=u:r:shell:s0 '
    "tcontext=u:object_r:vendor_xdsp_device:s0 tclass=chr_file permissive=0\n"
    "07-21 12:16:19.428 11115 11115 W hyco_runner: type=1400 audit(0.0:2019): avc:  denied  { getattr } for  "
    'path="/vendor/dsp" dev="sde10" ino=2 scontext=u:r:shell:s0 tcontext=u:object_r:adsprpcd_file:s0 tclass=dir '
    "permissive=0\n"
)
UNRELATED = (
    "06-19 17:15:30.719   764 13851 W sh: type=1400 audit(0.0:7): avc:  denied  { search } for  "
    'name="net" dev="sysfs" ino=38861 scontext=u:r:shell:s0 tcontext=u:object_r:sysfs_net:s0 tclass=dir permissive=0\n'
)
SESSION = "07-21 12:16:19.433 11115 11115 I dsp-client: DspClient.cpp (132): open_hal_session: opened device fd 93\n"


def set_log(phone: Phone, text: str) -> None:
    phone.set_command("logcat", f"#!/bin/sh\nprintf %s {shlex.quote(text)}\n")


@pytest.mark.adb
def test_a_node_that_opens(phone: Phone, asked: AskedOnce) -> None:
    phone.path(NODE).parent.mkdir()
    phone.path(NODE).touch()
    check = unsigned_domain(asked, (NODE, SECURE))
    assert check.status is Status.OK
    assert f"{NODE} (open)" in check.found
    assert SECURE not in check.found
    assert "not measured" in check.found


@pytest.mark.adb
def test_a_node_that_the_shell_may_not_open(plain_user: Phone, asked: AskedOnce) -> None:
    plain_user.path(NODE).parent.mkdir()
    plain_user.path(NODE).touch(mode=0o000)
    check = unsigned_domain(asked, (NODE, SECURE))
    assert check.status is Status.NOT_CHECKED
    assert f"{NODE} (closed)" in check.found
    assert "not measured" in check.found


@pytest.mark.adb
def test_a_node_that_the_shell_may_not_see(plain_user: Phone, asked: AskedOnce) -> None:
    plain_user.path(NODE).parent.mkdir()
    plain_user.path(NODE).touch()
    plain_user.path(NODE).parent.chmod(0o000)
    try:
        check = unsigned_domain(asked, (NODE,))
    finally:
        plain_user.path(NODE).parent.chmod(0o700)
    assert check.status is Status.NOT_CHECKED
    assert "Permission denied (hidden)" in check.found


@pytest.mark.adb
def test_no_node(asked: AskedOnce) -> None:
    check = unsigned_domain(asked)
    assert check.status is Status.PROBLEM
    assert check.found == f"none of {', '.join(NODES)} exists; whether an unsigned domain opens: not measured"


@pytest.mark.adb
@pytest.mark.parametrize(
    ("said", "status"),
    [("Enforcing", Status.OK), ("Permissive", Status.OK), ("", Status.NOT_CHECKED)],
)
def test_selinux_mode(phone: Phone, asked: AskedOnce, said: str, status: Status) -> None:
    phone.set_command("getenforce", f"#!/bin/sh\necho {said}\n")
    check = selinux_mode(asked)
    assert check.status is status
    assert said in check.found


@pytest.mark.adb
@pytest.mark.parametrize(
    ("log", "status", "found"),
    [
        (FIRST, Status.OK, "none of the DSP for the shell user in the log (none of other programs)"),
        (FIRST + OTHERS + UNRELATED, Status.OK, "none of the DSP for the shell user in the log (1 of other programs)"),
        (
            FIRST + OTHERS + OURS,
            Status.PROBLEM,
            "denied to the shell user: { read } adsprpc-smd-secure (vendor_xdsp_device); "
            "{ getattr } /vendor/dsp (adsprpcd_file)",
        ),
        (FIRST + OURS.replace("permissive=0", "permissive=1"), Status.OK, "none of the DSP"),
        (FIRST + OURS + SESSION, Status.OK, "a session was opened by the phone's own service"),
    ],
    ids=["none", "others", "ours", "permissive", "through the service"],
)
def test_denials(phone: Phone, asked: AskedOnce, log: str, status: Status, found: str) -> None:
    set_log(phone, log)
    check = selinux_denials(asked)
    assert check.status is status
    assert found in check.found


@pytest.mark.adb
def test_denials_in_the_kernels_log(phone: Phone, asked: AskedOnce) -> None:
    phone.set_command("logcat", "#!/bin/sh\nexit 1\n")
    phone.set_command("dmesg", f"#!/bin/sh\nprintf %s {shlex.quote(FIRST + OURS)}\n")
    assert selinux_denials(asked).status is Status.PROBLEM


@pytest.mark.adb
def test_no_log(phone: Phone, asked: AskedOnce) -> None:
    for name in ("logcat", "dmesg"):
        phone.set_command(name, "#!/bin/sh\necho Permission denied >&2\nexit 1\n")
    check = selinux_denials(asked)
    assert check.status is Status.NOT_CHECKED
