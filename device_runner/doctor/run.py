"""The whole examination, in order: this machine, what is meant to run, adb, the phone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.devices import list_devices
from device_runner.doctor import phone_identity, pieces
from device_runner.doctor.adb_server import find_client, look_at_server, server_address
from device_runner.doctor.check import Check, Finding, Status, examine, examine_value, not_checked
from device_runner.doctor.compiler import compiler_checks
from device_runner.doctor.device import AskedOnce
from device_runner.doctor.device_choice import choose, look_at_states
from device_runner.doctor.phone_access import selinux_denials, selinux_mode, unsigned_domain
from device_runner.doctor.phone_libraries import system_libraries
from device_runner.doctor.phone_state import battery, battery_saver, clocks, free_space, stay_awake, thermal_status
from device_runner.doctor.python_packages import python_checks
from device_runner.doctor.resources import resource_checks
from device_runner.doctor.toolchain import toolchain_checks

if TYPE_CHECKING:
    from pathlib import Path

    from device_runner.adb import AdbClient
    from device_runner.runner_folder import RunnerFolder
    from device_runner.states import ListedDevice
    from export.bundle import Bundle


@dataclass(frozen=True)
class Options:
    """What to examine beside this machine; serial None: the only usable phone."""

    serial: str | None = None
    bundles: tuple[Path, ...] = ()
    runner: Path | None = None


@dataclass(frozen=True)
class Report:
    """All checks in the order in which they were made."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no check found a problem; checks that could not be made do not count as one."""
        return all(check.status is not Status.PROBLEM for check in self.checks)


def run_doctor(options: Options) -> Report:
    """Make all checks. Nothing is changed: no file is pushed, no setting written, no server ended.

    adb starts its server where none runs, as with every call of it.
    """
    opened, bundles, runner = pieces.open_pieces(options.bundles, options.runner)
    adb_checks, phone = _reach_phone(options.serial)
    return Report(
        (
            *python_checks(),
            *compiler_checks(),
            *toolchain_checks(),
            *resource_checks(),
            *opened,
            *adb_checks,
            *([pieces.stub_and_skeleton(runner, None)] if phone is None else phone_checks(phone, runner, bundles)),
        )
    )


def phone_checks(phone: AskedOnce, runner: RunnerFolder | None, bundles: tuple[Bundle, ...]) -> list[Check]:
    """All checks of a phone."""
    said, identity = examine_value("identity", lambda: phone_identity.look_at_identity(phone))
    chip, target = examine_value("chip", lambda: phone_identity.look_at_chip(identity))
    return [
        said,
        phone_identity.abi(identity, runner),
        phone_identity.android_version(identity),
        chip,
        *(pieces.bundle_fits(bundle, target) for bundle in bundles),
        pieces.stub_and_skeleton(runner, target),
        system_libraries(phone, runner),
        unsigned_domain(phone),
        selinux_mode(phone),
        selinux_denials(phone),
        free_space(phone, runner, bundles),
        thermal_status(phone),
        battery(phone),
        battery_saver(phone),
        stay_awake(phone),
        clocks(phone),
    ]


def _reach_phone(serial: str | None) -> tuple[list[Check], AskedOnce | None]:
    """adb's checks, and the phone where one can be examined."""
    client_check, version = examine_value("adb client", find_client)
    server_check, client = examine_value("adb server", lambda: look_at_server(version, server_address()))
    checks = [client_check, server_check]
    if client is None:
        reason = "adb cannot be used: see the checks of its client and server"
        return [*checks, examine("device", lambda: not_checked(reason))], None
    states, devices = examine_value("connected devices", lambda: _listed(client, serial))
    if devices is None:
        return [*checks, states, examine("device", lambda: not_checked("adb gives no list of devices"))], None
    chosen, found = examine_value("device", lambda: choose(devices, serial))
    return [*checks, states, chosen], None if found is None else AskedOnce(client, found)


def _listed(client: AdbClient, serial: str | None) -> tuple[Finding, tuple[ListedDevice, ...]]:
    devices = list_devices(client)
    return look_at_states(devices, serial), devices
