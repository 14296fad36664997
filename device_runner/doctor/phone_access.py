"""May a program of the shell user reach the NPU: FastRPC's device nodes, SELinux and what it denied.

The runner needs an unsigned protection domain on the compute DSP. Without a run only its surroundings can be seen:

- the kernel's node without `-secure` admits unsigned domains alone (drivers/misc/fastrpc.c); it is /dev/fastrpc-cdsp in
  the mainline driver, /dev/adsprpc-smd in Qualcomm's;
- where the shell may not open a node, Qualcomm's library asks a service for it ("no access to default device of domain
  3, open thru HAL"), so a closed node is no proof;
- denials name vendor_xdsp_device, vendor_qdsp_device or adsprpcd_file as their target. A denial that was followed by
  "open_hal_session: opened device" did no harm.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from device_runner.doctor.check import Finding, named, not_checked, ok, problem
from device_runner.doctor.device import CALL
from device_runner.facts import read_selinux
from device_runner.transport import Timeout, script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_runner.doctor.device import AskedOnce

NODES = ("/dev/fastrpc-cdsp", "/dev/adsprpc-smd", "/dev/fastrpc-cdsp-secure", "/dev/adsprpc-smd-secure")
_NOT_MEASURED = "whether an unsigned domain opens: not measured"
_RUN_IT = "only a run tells: `hyco-npu bench --device SERIAL`"
# One line a node; `-r` asks the kernel, which asks SELinux. The mainline library and Qualcomm's open nodes for reading.
_NODES_SCRIPT = """
for f do
  l=$(ls -lZd "$f" 2>&1)
  if [ -r "$f" ]; then echo "open $l"
  elif [ -e "$f" ]; then echo "closed $l"
  else case "$l" in *"No such file"*) echo "absent $f";; *) echo "hidden $l";; esac
  fi
done
"""

_LOG = Timeout(60.0)
# The first line shows that there was a log at all; the events buffer and the kernel's hold the denials.
_LOG_SCRIPT = """
s='1p
/avc:  *denied/p
/open_hal_session: opened device/p'
{ logcat -d -b all 2>/dev/null || dmesg 2>/dev/null; } | sed -n -e "$s" | tail -n 500
"""
_DENIAL = re.compile(
    r"avc:\s+denied\s+\{ (?P<what>[^}]*?) \}.*?(?:name|path)=\"?(?P<object>[^\" ]+).*?"
    r"scontext=u:r:(?P<source>\w+):\S*\s+tcontext=u:object_r:(?P<target>\w+):.*?permissive=(?P<permissive>\d)"
)
_DSP = re.compile(r"dsp|fastrpc")
_SESSION = "open_hal_session: opened device"


@named("unsigned domain")
def unsigned_domain(phone: AskedOnce, nodes: Sequence[str] = NODES) -> Finding:
    """FastRPC's nodes as the shell user sees them."""
    lines = phone.shell(script(_NODES_SCRIPT, *nodes), CALL).checked().splitlines()
    seen = [line.partition(" ") for line in lines if line.startswith(("open ", "closed ", "hidden "))]
    listing = "; ".join(f"{text} ({kind})" for kind, _, text in seen)
    if any(kind == "open" for kind, _, _ in seen):
        return ok(f"{listing}; {_NOT_MEASURED}", _RUN_IT)
    if seen:
        closed = f"the shell user may open no node: {listing}; a service of the phone may open one for it"
        return not_checked(f"{closed}; {_NOT_MEASURED}", _RUN_IT)
    return problem(
        f"none of {', '.join(nodes)} exists; {_NOT_MEASURED}",
        "without FastRPC no program reaches the NPU: is this a Snapdragon phone with its maker's kernel?",
    )


@named("selinux")
def selinux_mode(phone: AskedOnce) -> Finding:
    """SELinux' mode; `Enforcing` is every phone's and needs no change."""
    mode = read_selinux(phone, CALL)
    return not_checked("`getenforce` gives no mode") if mode is None else ok(mode)


@named("selinux denials")
def selinux_denials(phone: AskedOnce) -> Finding:
    """What the log still holds of denials that kept the shell user's programs from the DSP."""
    lines = phone.shell(script(_LOG_SCRIPT), _LOG).checked().splitlines()
    if not lines:
        return not_checked("neither `logcat` nor `dmesg` gives the shell user a log")
    denials = [found for line in lines if (found := _DENIAL.search(line)) is not None]
    dsp = [one for one in denials if _DSP.search(one["target"]) or _DSP.search(one["object"])]
    ours = [one for one in dsp if one["source"] == "shell" and one["permissive"] == "0"]
    others = f"{len(dsp) - len(ours)} of other programs" if len(dsp) > len(ours) else "none of other programs"
    if not ours:
        return ok(f"none of the DSP for the shell user in the log ({others})")
    listing = "; ".join(dict.fromkeys(f"{{ {one['what']} }} {one['object']} ({one['target']})" for one in ours))
    if any(_SESSION in line for line in lines):
        return ok(f"{listing}; a session was opened by the phone's own service, so they did no harm")
    return problem(
        f"denied to the shell user: {listing}",
        "run the bench once more and look whether the log has `open_hal_session: opened device`; if not, this phone's "
        "policy keeps the shell from the DSP, and no setting of ours changes it: another build or model is needed",
    )
