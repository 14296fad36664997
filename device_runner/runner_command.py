"""The native runner's command line on a device: which graphs, on what, in which mode.

The runner starts in its own folder, where its libraries are; bundles lie beside it (device_runner.staging).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.staging import RUNNER_DIR
from device_runner.transport import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from device_runner.runner_folder import Provider, RunnerFolder
    from device_runner.staging import StagedPair
    from export.engines.htp import Target

SILENCE_S: Mapping[Provider, float] = {"cpu": 300.0, "simulator": 1800.0, "htp": 120.0}
"""How long a runner may print nothing: it opens graphs, and a round of the simulator may take minutes."""


@dataclass(frozen=True)
class RunnerSetup:
    """A runner and what its graphs run on. chip: of the compiled graphs, None on the CPU. cpu_mask: hexadecimal."""

    runner: RunnerFolder
    provider: Provider
    chip: Target | None
    threads: int = 1
    cpu_mask: str | None = None

    def command(self, mode: str, remote: str, pair: StagedPair, *others: str) -> Command:
        """A call of the runner that was pushed to `remote`; `others` are the mode's own arguments."""
        facts = self.runner.description
        argv = [f"./{facts.runner}", mode, "--provider", self.provider, "--ort", f"./{facts.ort}"]
        argv += ["--mtp", f"../{pair.mtp}", "--slm", f"../{pair.slm}", "--threads", str(self.threads)]
        if self.chip is not None:
            argv += ["--qnn-provider", f"./{facts.qnn_provider}", "--qnn-backend", f"./{facts.qnn_backend}"]
            argv += ["--soc-model", str(self.chip.soc_model), "--htp-arch", str(self.chip.htp_arch)]
        if self.cpu_mask is not None:
            argv += ["--cpu-mask", self.cpu_mask]
        cwd = posixpath.join(remote, RUNNER_DIR)
        return Command((*argv, *others), cwd, {"LD_LIBRARY_PATH": ".", "ADSP_LIBRARY_PATH": "."})
