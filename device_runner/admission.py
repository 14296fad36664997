"""Does this run fit this device? Decided on the host, before anything is pushed.

A binary for another Hexagon architecture or of a newer QNN ends the runner on the phone without a word, or late
(onnxruntime issues 23431 and 26163); a runner for another processor does not start.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from device_runner.errors import FactError
from export.bundle.compatibility import RuntimeTarget, require_target
from export.bundle.reader import require_intact
from export.engines.htp import TARGETS, Target, why_unavailable
from export.errors import BundleError
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_runner.devices import Identity
    from device_runner.runner_folder import Provider, RunnerFolder
    from device_runner.staging import Pair
    from export.bundle.reader import Bundle

_RUNNERS = {"x86_64": "x86_64-linux", "arm64-v8a": "arm64-v8a", "aarch64": "aarch64-linux"}
"""The runner that starts on a processor, as a device or a host names it."""


def device_abis(identity: Identity | None) -> tuple[str, ...]:
    """The device's processor, or this machine's for None, in the names that it goes by.

    A phone has that of its property (ro.product.cpu.abi). A kernel for x86-64 is named first, whatever the property
    says: such a device is an emulator or one of tests. Raises FactError for a device that does not tell.
    """
    if identity is None:
        return (platform.machine(),)
    kernel = ("x86_64",) if identity.machine == "x86_64" else ()
    names = (*kernel, *(() if identity.abi is None else (identity.abi,)))
    if not names:
        raise FactError("the device does not tell its processor (ro.product.cpu.abi): no runner can be chosen")
    return tuple(dict.fromkeys(names))


def runners_for(identity: Identity | None) -> tuple[str, ...]:
    """The builds of the runner that start on the device; raises FactError as `device_abis`."""
    return tuple(_RUNNERS[abi] for abi in device_abis(identity) if abi in _RUNNERS)


def require_sound(bundle: Bundle) -> None:
    """Refuse what is wrong with a bundle whatever the device is, before anything is asked of adb.

    Raises BundleError: a file is not as the manifest says; a target's numbers are not those of the chip it names.
    """
    require_intact(bundle)
    for status in bundle.manifest.targets:
        chip = TARGETS.get(status.target)
        if chip is not None and (status.soc_model, status.htp_arch) != (chip.soc_model, f"v{chip.htp_arch}"):
            raise BundleError(
                f"bundle {bundle.folder}: its manifest has soc_model {status.soc_model} and {status.htp_arch} for "
                f"{status.target}, which is {chip.soc_model} and v{chip.htp_arch}: export it again"
            )


def admit(runner: RunnerFolder, provider: Provider, pairs: Sequence[Pair], identity: Identity | None) -> Target | None:
    """Refuse what cannot run; the chip whose binaries are run (None on the CPU).

    Raises:
        UsageError: a runner of another processor or without the provider.
        BundleError: a damaged bundle, one that was not compiled for the device's chip, or by a newer QNN.
        FactError: a device that does not tell its chip.
        RunnerFolderError: a runner whose files changed.
    """
    facts = runner.description
    if facts.abi not in runners_for(identity):
        raise UsageError(
            f"the runner of {runner.folder} is built for {facts.abi}, the device is {device_abis(identity)[0]}: name "
            "another one (--runner; `hyco-npu runner build` makes one for a phone)"
        )
    if provider not in facts.providers:
        raise UsageError(
            f"the runner of {runner.folder} has no provider {provider}; it has {', '.join(facts.providers)}: name "
            "another --provider or --runner"
        )
    runner.verify()
    bundles = {bundle.folder: bundle for pair in pairs for bundle in pair.bundles}.values()
    for bundle in bundles:
        require_sound(bundle)
    if provider == "cpu":
        return None
    chip = _chip_of(identity) if provider == "htp" else _chip_simulated([*bundles])
    for bundle in bundles:
        require_target(bundle, RuntimeTarget(chip.name, chip.soc_model, f"v{chip.htp_arch}", facts.qnn_build))
    if provider == "htp" and f"v{chip.htp_arch}" not in facts.htp_archs:
        raise UsageError(
            f"the runner of {runner.folder} has stub and skeleton for {', '.join(facts.htp_archs) or 'no NPU'}, "
            f"the device's NPU is v{chip.htp_arch}: build it again with `hyco-npu runner build`"
        )
    return chip


def _chip_of(identity: Identity | None) -> Target:
    name = None if identity is None else identity.soc_model
    if name is None:
        raise FactError("the device does not tell its chip (ro.soc.model, Android 12 and later)")
    if name.lower() not in TARGETS:
        raise FactError(
            f"the device's chip is {name}; bundles are for {', '.join(sorted(TARGETS))}: --provider cpu runs on any"
        )
    return TARGETS[name.lower()]


def _chip_simulated(bundles: Sequence[Bundle]) -> Target:
    """The chip that all bundles were compiled for."""
    if reason := why_unavailable():
        raise UsageError(f"--provider simulator: {reason}")
    names = {status.target for bundle in bundles for status in bundle.manifest.targets[:1] if status.compiled}
    if len(names) != 1 or not names <= TARGETS.keys():
        raise BundleError(
            f"the bundles are compiled for {', '.join(sorted(names)) or 'no chip'}; the simulator runs one chip: "
            "export them for one --target"
        )
    return TARGETS[names.pop()]
