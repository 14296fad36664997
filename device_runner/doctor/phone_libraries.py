"""QNN libraries that came with the phone and may be loaded in place of the pushed ones.

A phone's own libraries are of another build ("Stub lib id mismatch"). They come first where LD_LIBRARY_PATH names their
folder first, or where a library asks for another by name and the linker does not find it beside the runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_runner.doctor.check import Finding, named, not_checked, ok, problem
from device_runner.doctor.device import CALL
from device_runner.qnn_build import BuildStamp
from device_runner.transport import script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_runner.doctor.device import AskedOnce
    from device_runner.runner_folder import RunnerFolder

LIBRARY_FOLDERS = ("/vendor/lib64", "/system/lib64", "/odm/lib64", "/system_ext/lib64", "/product/lib64")
SKELETON_FOLDERS = ("/vendor/lib/rfsa/adsp", "/vendor/lib64/rfs/dsp", "/odm/lib/rfsa/adsp", "/vendor/dsp/cdsp")
_START = (
    "start the runner in its folder with LD_LIBRARY_PATH=. and ADSP_LIBRARY_PATH=. (as `hyco-npu bench` does), and "
    "never with /vendor/lib64 first; ADSP_LIBRARY_PATH is separated by ';', not ':'. The runner's first line names the "
    "build that it loaded"
)
# A line a library: its path, a blank, its build or `unknown`. toybox' grep has -a, -o and -E.
_SCRIPT = """
for d do
  if [ -d "$d" ] && [ ! -r "$d" ]; then echo "unreadable $d"; fi
  for f in "$d"/libQnn*.so; do
    [ -e "$f" ] || continue
    b=$(grep -a -o -E 'v[0-9]+[.][0-9]+[.][0-9]+[.][0-9]{6,12}' "$f" 2>/dev/null | head -n 1)
    echo "library $f ${b:-unknown}"
  done
done
"""


@named("libraries of the system")
def system_libraries(
    phone: AskedOnce,
    runner: RunnerFolder | None,
    folders: Sequence[str] = (*LIBRARY_FOLDERS, *SKELETON_FOLDERS),
) -> Finding:
    """QNN libraries in the system's folders are of the pushed build, or there are none."""
    lines = phone.shell(script(_SCRIPT, *folders), CALL).checked().splitlines()
    unreadable = [line.partition(" ")[2] for line in lines if line.startswith("unreadable ")]
    rest = f"; not readable: {', '.join(unreadable)}" if unreadable else ""
    found = [line.removeprefix("library ").rpartition(" ") for line in lines if line.startswith("library ")]
    if not found:
        if unreadable:
            return not_checked(f"none seen{rest}")
        return ok(f"none in {', '.join(folders)}")
    pushed = None if runner is None else runner.description.qnn_build
    if pushed is None:
        return not_checked(f"{_listing(found)}{rest}; no pushed build to compare with (--runner DIR)")
    others = [one for one in found if BuildStamp(one[2]).number != BuildStamp(pushed).number]
    if others:
        return problem(f"{_listing(others)}{rest}; pushed: {pushed}", _START)
    return ok(f"{len(found)} of the pushed build {pushed}{rest}")


def _listing(found: Sequence[tuple[str, str, str]]) -> str:
    """Libraries by build: `v2.25.0.1: /vendor/lib64/libQnnHtp.so, ...`."""
    builds: dict[str, list[str]] = {}
    for path, _, build in found:
        builds.setdefault(build, []).append(path)
    return "; ".join(f"{build}: {', '.join(paths)}" for build, paths in builds.items())
