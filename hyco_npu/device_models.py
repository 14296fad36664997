"""Models of a decoding run whose drafter is on a device: the verifier here, both drafters at the runner there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from device_runner.admission import admit
from device_runner.runner_command import RunnerSetup
from device_runner.serving import serving
from device_runner.staging import stage
from hyco_npu.bench.choose import chosen_provider, chosen_runner, opened_device
from hyco_npu.bench.host import config_for
from hyco_npu.decode.drafters.remote import RemoteDrafter
from hyco_npu.decode.models import ModelPaths, Models
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from device_runner.runner_folder import Provider
    from device_runner.serve_client import ServeClient
    from device_runner.staging import Pair
    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.protocols import Drafter


@dataclass(frozen=True)
class DeviceChoice:
    """A device by its serial (or "local"), its runner's folder and provider; None where the default is meant."""

    name: str
    runner: Path | None = None
    provider: Provider | None = None


class DeviceModels(Models):
    """As Models, with drafters behind a connection. provider: what the device's graphs run on."""

    def __init__(self, paths: ModelPaths, pair: Pair, provider: Provider) -> None:
        super().__init__(paths, "qdq")
        self._pair, self.provider = pair, provider
        self._client: ServeClient | None = None

    def connect(self, client: ServeClient) -> None:
        """Draft through this connection from now on."""
        self._client = client

    def drafter(self, config: DecodeConfig) -> Drafter:
        """A drafter for one text; raises UsageError for a configuration that the runner does not draft."""
        assert self._client is not None  # device_models connects before it hands these out
        return RemoteDrafter(self._client, config_for(config, self._pair), self.clock)


@contextmanager
def device_models(
    paths: ModelPaths, choice: DeviceChoice, pair: Pair, progress: Callable[[str], None]
) -> Iterator[DeviceModels]:
    """Push runner and bundles, start the runner, and hand out models that draft with it.

    Raises UsageError or BundleError for what does not fit, before anything is pushed; DeviceError for what fails on the
    device.
    """
    with opened_device(choice.name) as device, TemporaryDirectory(prefix="hyco-serve-") as scratch:
        progress("looking for the native runner")
        runner = chosen_runner(choice.runner, device.identity)
        provider = chosen_provider(choice.provider, runner)
        chip = admit(runner, provider, (pair,), device.identity)
        models = DeviceModels(paths, pair, provider)
        _require_one_vocabulary(models, pair)
        staged = stage(Path(scratch), runner, (pair,), provider)
        progress(f"pushing to {device.transport.name}")
        setup = RunnerSetup(runner, provider, chip)
        with serving(device.transport, Path(scratch), setup, staged[pair.label]) as client:
            models.connect(client)
            yield models


def _require_one_vocabulary(models: DeviceModels, pair: Pair) -> None:
    for bundle in pair.bundles:
        size = bundle.manifest.keep_set.vocab_size
        if size != models.vocabulary_size:
            raise UsageError(
                f"bundle {bundle.folder} is for {size} tokens, the verifier has {models.vocabulary_size}: drafts of "
                "one are no tokens of the other"
            )
