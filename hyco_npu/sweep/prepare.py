"""A sweep from plan file to result folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from export.checkpoint.reader import CheckpointReader
from export.sources import vocabulary_in
from hyco_npu.family import HELD_OUT_PROMPTS
from hyco_npu.sweep.plan import (
    Plan,
    Setting,
    check_keep_sets,
    plan_prompts,
    plan_settings,
    read_plan,
    reference_setting,
)
from hyco_npu.sweep.report import Row, Sweep, write_sweep
from hyco_npu.sweep.run import Workload, run_settings, workload_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from calibration.prompts import PromptFile
    from hyco_npu.decode.models import ModelPaths


@dataclass(frozen=True)
class SweepOptions:
    """Plan file, folder of the result, checkpoints, processes at a time."""

    plan: Path
    out: Path
    paths: ModelPaths
    jobs: int = 1

    @property
    def work_dir(self) -> Path:
        """Where finished settings lie."""
        return self.out.with_name(f"{self.out.name}.work")


@dataclass(frozen=True, eq=False)
class PreparedSweep:
    """A sweep whose plan was checked. `reference` is the place of the setting that others are compared with."""

    options: SweepOptions
    plan: Plan
    settings: list[Setting]
    reference: int | None
    prompts: PromptFile
    workload: Workload

    @property
    def different(self) -> int:
        """Settings that differ in more than their name: so many are run."""
        return len({setting.identity for setting in self.settings})

    def run(self, done: Callable[[int], None]) -> list[Row]:
        """Run what is not finished, write the result, return its rows; `done` is told how many are finished."""
        options = self.options
        measured = run_settings(self.settings, self.workload, options.work_dir, options.jobs, done)
        sweep = Sweep(self.settings, measured, self.reference, self.plan.seed)
        return write_sweep(options.out, sweep, self._described())

    def _described(self) -> dict[str, Any]:
        paths = self.options.paths
        folders = {"verifier": paths.verifier, "mtp": paths.mtp, "slm": paths.slm}
        prompts = {"file": self.prompts.name, "sha256": self.prompts.sha256, "count": len(self.prompts.prompts)}
        return {
            "plan": self.plan.model_dump(),
            "prompts": prompts,
            "checkpoints": {name: CheckpointReader(folder).sha256 for name, folder in folders.items()},
        }


def prepare(options: SweepOptions) -> PreparedSweep:
    """Read the plan and check all of it before anything runs. Raises UsageError naming what cannot be."""
    folder = options.plan.parent
    plan = read_plan(options.plan)
    settings = plan_settings(plan, folder)
    reference = reference_setting(plan, folder)
    place = None
    if reference is not None:
        place = next((at for at, one in enumerate(settings) if one.identity == reference.identity), len(settings))
        settings += [reference] if place == len(settings) else []
    check_keep_sets(settings, vocabulary_in(options.paths.verifier))
    prompts = plan_prompts(plan, folder, HELD_OUT_PROMPTS)
    workload = workload_of(prompts.prompts, plan.options, options.paths)
    return PreparedSweep(options, plan, settings, place, prompts, workload)
