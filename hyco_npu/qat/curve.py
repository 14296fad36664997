"""The training curve as CSV and as a picture."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

COLUMNS = ("step", "loss", "gradient_norm", "learning_rate", "validation_kl", "accepted_per_round")
CurveRow = dict[str, float]
"""The first four of COLUMNS, and the last two where the step was validated."""


def write_csv(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """One line a step; the validation's cells are empty where there was none."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)


def draw_png(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Training and validation KL on the left axis, accepted tokens per round on the right; 640 x 360 pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=80, layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    validated = [row for row in rows if "validation_kl" in row]
    steps = [row["step"] for row in validated]
    lines = left.plot([row["step"] for row in rows], [row["loss"] for row in rows], alpha=0.5, label="KL, training")
    lines += left.plot(steps, [row["validation_kl"] for row in validated], marker=".", label="KL, validation")
    accepted = [row["accepted_per_round"] for row in validated]
    lines += right.plot(steps, accepted, "--", color="tab:green", marker=".", label="accepted per round, validation")
    left.set(xlabel="step", ylabel="nats per prediction", title="Quantisation-aware training", ylim=(0, None))
    right.set_ylabel("accepted tokens per round")
    left.grid(alpha=0.3)
    right.legend(handles=lines, loc="center right")  # on the axis drawn last, else its line crosses the legend
    figure.savefig(path, format="png")


def _cell(name: str, value: float) -> float | int:
    return int(value) if name == "step" else float(f"{value:.6g}")
