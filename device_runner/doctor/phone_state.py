"""What disturbs a measurement: space, heat, battery, capped clocks, a phone that falls asleep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_runner.doctor.check import Finding, named, not_checked, ok, problem
from device_runner.doctor.device import CALL
from device_runner.facts import STATUS_NAMES, read_battery, read_cores, read_thermal
from device_runner.remote_files import free_bytes
from device_runner.transport import Command
from export.bundle import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from device_runner.doctor.device import AskedOnce
    from device_runner.facts import Core
    from device_runner.runner_folder import RunnerFolder
    from export.bundle import Bundle

PHONE_ROLES = ("context", "binary")
"""Of a graph's files, those that a phone's NPU is given."""

LOWEST_BATTERY_PERCENT = 20
LOWEST_CLOCK_SHARE = 0.8
_OVERHEAD_BYTES = 8192
_ON_USB = 2
"""Bit of stay_on_while_plugged_in: android.os.BatteryManager.BATTERY_PLUGGED_USB."""


@named("free space")
def free_space(phone: AskedOnce, runner: RunnerFolder | None, bundles: Sequence[Bundle]) -> Finding:
    """What is to be pushed fits, as if nothing of it were there yet."""
    free = free_bytes(phone, phone.work_dir, CALL)
    shown = f"{free / 1e9:.2f} GB in {phone.work_dir}"
    if runner is None and not bundles:
        return not_checked(f"{shown}; nothing to push was given (--bundle DIR, --runner DIR)")
    needed = sum(pushed_bytes(bundle) for bundle in bundles)
    if runner is not None:
        needed += sum(file.size_bytes + _OVERHEAD_BYTES for file in runner.description.files)
    if needed > free:
        return problem(f"{shown}, {needed / 1e9:.2f} GB to push", f"free {(needed - free) / 1e9:.2f} GB on the phone")
    return ok(f"{shown}, {needed / 1e9:.2f} GB to push")


def pushed_bytes(bundle: Bundle) -> int:
    """Bytes of a bundle that a phone needs: compiled graphs, tables, keep set, manifest."""
    manifest = bundle.manifest
    names = {path for graph in manifest.graphs for role, path in graph.files.items() if role in PHONE_ROLES}
    names |= {table.file for table in (manifest.table, manifest.per_layer_table) if table is not None}
    names.add(manifest.keep_set.file)
    sizes = [file.size_bytes for file in manifest.files if file.path in names]
    sizes.append((bundle.folder / MANIFEST_NAME).stat().st_size)
    return sum(size + _OVERHEAD_BYTES for size in sizes)


@named("thermal status")
def thermal_status(phone: AskedOnce) -> Finding:
    """Cool, and really so."""
    thermal = read_thermal(phone, CALL)
    if thermal is None:
        return not_checked("`dumpsys thermalservice` tells no status")
    name = STATUS_NAMES[thermal.status] if thermal.status < len(STATUS_NAMES) else "unknown"
    skin_c = thermal.hottest_c("skin")
    shown = f"{thermal.status} ({name}), {'no skin sensor' if skin_c is None else f'skin {skin_c:.1f} °C'}"
    if thermal.overridden:
        return problem(f"{shown}, fixed by hand", "`adb shell cmd thermalservice reset` gives the real one back")
    if thermal.status > 0:
        return problem(shown, "let the phone cool, out of its case and away from the charger")
    return ok(shown)


@named("battery")
def battery(phone: AskedOnce) -> Finding:
    """Full enough that the phone saves nothing."""
    state = read_battery(phone, CALL)
    if state is None:
        return not_checked("`dumpsys battery` tells no level")
    fed = ", ".join(state.powered_by) or "nothing"
    shown = f"{state.level_percent} %, {state.temp_c:.1f} °C, fed by {fed}"
    if state.updates_stopped:
        return problem(f"{shown}, fixed by hand", "`adb shell dumpsys battery reset` gives the real values back")
    if state.level_percent < LOWEST_BATTERY_PERCENT:
        return problem(shown, f"charge it above {LOWEST_BATTERY_PERCENT} %: an empty battery lowers the clocks")
    return ok(shown)


@named("battery saver")
def battery_saver(phone: AskedOnce) -> Finding:
    """Android's battery saver is off."""
    value = _setting(phone, "low_power")
    if value == "1":
        return problem("on", "switch it off: it lowers the clocks")
    return ok("off") if value in ("0", "null") else not_checked(_unknown("low_power", value))


@named("stay awake")
def stay_awake(phone: AskedOnce) -> Finding:
    """The developer setting that keeps the screen on while USB feeds the phone."""
    value = _setting(phone, "stay_on_while_plugged_in")
    if value is None or not (value.isdigit() or value == "null"):
        return not_checked(_unknown("stay_on_while_plugged_in", value))
    if value != "null" and int(value) & _ON_USB:
        return ok("on while USB feeds the phone")
    return problem("off: the phone may fall asleep in a run", "`adb shell svc power stayon usb`")


@named("clocks")
def clocks(phone: AskedOnce) -> Finding:
    """No core is held down or governed for saving; one that is switched off is named."""
    cores = read_cores(phone, CALL)
    known = [core for core in cores if core.limit_khz is not None and core.max_khz is not None]
    if not known:
        return not_checked(f"the shell user may read no clocks of {len(cores)} cores")
    governors = ", ".join(sorted({core.governor for core in cores if core.governor is not None})) or "unknown"
    offline = [core.index for core in cores if not core.online]
    saving = [core.index for core in cores if core.governor == "powersave"]
    capped = [core.index for core in known if _share(core) < LOWEST_CLOCK_SHARE]
    shown = "; ".join(
        (
            f"{len(cores)} cores, governor {governors}, limits {_limits(known)}",
            *_cores("switched off", offline),
            *_cores("governed for saving", saving),
            *_cores(f"held below {LOWEST_CLOCK_SHARE:.0%} of their clock", capped),
        )
    )
    if saving or capped:
        return problem(shown, "let the phone cool, switch power saving and game modes off, or restart it")
    return ok(shown)


def _cores(what: str, indices: Sequence[int]) -> list[str]:
    return [f"{what}: {', '.join(map(str, indices))}"] if indices else []


def _limits(cores: Iterable[Core]) -> str:
    """The governor's limits with the silicon's, one of each kind of core: `3.53 of 3.63 GHz, 4.32 of 4.74 GHz`."""
    pairs = dict.fromkeys((core.limit_khz, core.max_khz) for core in cores)
    return ", ".join(f"{(limit or 0) / 1e6:.2f} of {(most or 0) / 1e6:.2f} GHz" for limit, most in pairs)


def _share(core: Core) -> float:
    return (core.limit_khz or 0) / (core.max_khz or 1)


def _setting(phone: AskedOnce, name: str) -> str | None:
    """A global setting; None where the phone has no such program."""
    result = phone.shell(Command(("settings", "get", "global", name)), CALL)
    return result.stdout.strip() if result.exit_code == 0 else None


def _unknown(name: str, value: str | None) -> str:
    return f"the phone has no `settings`, so {name} is unknown" if value is None else f"{name} is {value!r}"
