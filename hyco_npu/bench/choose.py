"""What a benchmark runs on: the device that was named, the runner for its processor, the provider."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from device_runner.adb import AdbClient
from device_runner.admission import device_abis, runners_for
from device_runner.bench_run import DEFAULT_PERF_MODES, BenchDevice, require_known_modes
from device_runner.cache import device_to_ourselves
from device_runner.devices import choose_device, identify
from device_runner.host_folder import cached_host_runner
from device_runner.local import LocalTransport
from device_runner.runner_folder import PHONE_RUNNER, RunnerFolder
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from device_runner.devices import Identity
    from device_runner.runner_folder import Provider

LOCAL = "local"
PROVIDERS: tuple[Provider, ...] = ("cpu", "simulator", "htp")


@contextmanager
def opened_device(name: str | None) -> Iterator[BenchDevice]:
    """The phone with this serial, the only one there is (None), or this machine in a scratch folder ("local").

    Raises DeviceChoiceError, DeviceStateError and AdbMissingError as `device_runner.devices` does, and DeviceBusyError
    for a phone that another command uses.
    """
    if name != LOCAL:
        transport = choose_device(AdbClient.find(), name)
        with device_to_ourselves(transport.serial):
            yield BenchDevice(transport, identify(transport))
        return
    with TemporaryDirectory(prefix="hyco-device-") as folder:
        yield BenchDevice(LocalTransport(Path(folder)), None)


def chosen_runner(folder: Path | None, identity: Identity | None) -> RunnerFolder:
    """The named runner; else this machine's own for a device with its processor, built where the cache has none, and
    for another device the one that `hyco-npu runner build` has left in the working folder.

    Raises UsageError for a device that needs a runner built for it, else as RunnerFolder.load and cached_host_runner.
    """
    if folder is not None:
        return RunnerFolder.load(folder)
    if "x86_64-linux" in runners_for(identity):
        return cached_host_runner()
    if PHONE_RUNNER.is_dir():
        return RunnerFolder.load(PHONE_RUNNER)
    raise UsageError(
        f"the device is {device_abis(identity)[0]}: build a runner for it with `hyco-npu runner build` and name its "
        f"folder with --runner, or leave it in {PHONE_RUNNER}"
    )


def named_provider(choice: str) -> Provider | None:
    """The provider of this name; None for `auto`."""
    return next((name for name in PROVIDERS if name == choice), None)


def chosen_provider(wanted: Provider | None, runner: RunnerFolder) -> Provider:
    """The wanted one; without a wish the NPU where the runner has its libraries, else the CPU."""
    if wanted is not None:
        return wanted
    return "htp" if "htp" in runner.description.providers else "cpu"


def chosen_modes(wanted: Sequence[str], provider: Provider) -> tuple[str, ...]:
    """Performance modes: those wanted, or burst and sustained; none where there is no NPU.

    Raises UsageError for an unknown one, wherever it was wanted.
    """
    require_known_modes(wanted)
    if provider != "htp":
        return ()
    return tuple(dict.fromkeys(wanted)) or DEFAULT_PERF_MODES
