"""Steps, validations, saved states and the early end of one training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hyco_npu.qat.evaluate import Form

if TYPE_CHECKING:
    from collections.abc import Callable

    from hyco_npu.qat.curve import CurveRow
    from hyco_npu.qat.evaluate import Ruler
    from hyco_npu.qat.options import QatOptions
    from hyco_npu.qat.train import Trainer

STATE_FILE = "state.pt"
VALIDATE_EVERY = 10
"""Steps between two validations; the state is saved after each."""


@dataclass
class History:
    """The curve so far, the best validation (KL and weights; with patience alone) and validations since then."""

    rows: list[CurveRow] = field(default_factory=list)
    best: dict[str, Any] | None = None
    misses: int = 0
    stopped_early: bool = False
    steps_run: int = 0
    """Steps of this process, without those before a resume."""


def train(trainer: Trainer, ruler: Ruler, options: QatOptions, progress: Callable[[str], None]) -> History:
    """Run the steps that are left; with patience, the weights of the best validation are in the trainer at the end."""
    state, steps = options.work_dir / STATE_FILE, options.recipe.steps
    history = History()
    if state.is_file():
        saved = trainer.load(state)
        history = History(saved["rows"], saved["best"], saved["misses"])
    seen = "not validated yet"
    while trainer.step < steps and not history.stopped_early:
        done = trainer.run_step()
        history.steps_run += 1
        row = {
            "step": float(trainer.step),
            "loss": done.loss,
            "gradient_norm": done.gradient_norm,
            "learning_rate": done.learning_rate,
        }
        history.rows.append(row)
        if trainer.step % VALIDATE_EVERY == 0 or trainer.step == steps:
            row["validation_kl"], row["accepted_per_round"] = validate(trainer, ruler)
            seen = f"validation KL {row['validation_kl']:.4f}, {row['accepted_per_round']:.3f} accepted per round"
            if options.patience:
                _note_best(history, trainer, row["validation_kl"], options.patience)
            if ruler.processes.is_main:
                trainer.save(state, {"rows": history.rows, "best": history.best, "misses": history.misses})
        progress(f"step {trainer.step}/{steps}: loss {done.loss:.4f}, {seen}")
    if history.best is not None:
        trainer.student.load(history.best["weights"])
    return history


def validate(trainer: Trainer, ruler: Ruler) -> tuple[float, float]:
    """KL and accepted tokens per round of the weights as they would be exported."""
    with torch.no_grad():
        rounded = trainer.student.rounded()
    return ruler.glance(Form("student", trainer.recipe.bits, rounded, 0))


def _note_best(history: History, trainer: Trainer, kl: float, patience: int) -> None:
    if history.best is None or kl < history.best["kl"]:
        weights = {name: weight.detach().clone() for name, weight in trainer.student.weights.items()}
        history.best, history.misses = {"kl": kl, "weights": weights}, 0
    else:
        history.misses += 1
    history.stopped_early = history.misses >= patience
