"""A sweep as a picture: MAT against the device's memory floor, and over a key where one numeric key was varied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

_LABEL_HEIGHT = 0.22
"""Inches that a line of small type needs."""
_LEADER: dict[str, Any] = {"arrowstyle": "-", "alpha": 0.3, "linewidth": 0.6, "relpos": (0.0, 0.5)}
"""The line from a point to its label's left end."""


def draw_png(path: Path, rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> None:
    """Write the picture; settings without a round are left out. Bars are 95 % intervals."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["mat"] is not None]
    key = _numeric_key(shown, varied)
    height = max(4.5, 1.2 + _LABEL_HEIGHT * len(shown))
    figure = Figure(figsize=(9.5 if key is None else 15.0, height), dpi=100, layout="constrained")
    axes = figure.subplots(1, 1 if key is None else 2, squeeze=False)[0]
    colours = {name: f"C{place % 10}" for place, name in enumerate(dict.fromkeys(row["config"] for row in rows))}
    _draw_floor(axes[0], shown, varied, colours)
    if key is not None:
        _draw_key(axes[1], shown, key, colours)
    figure.savefig(path, format="png")


def label_heights(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Heights for labels between `low` and `high`, evenly spaced, in the order of the heights wanted."""
    order = sorted(range(len(wanted)), key=lambda place: (wanted[place], place))
    step = (high - low) / max(len(wanted), 1)
    heights = [0.0] * len(wanted)
    for rank, place in enumerate(order):
        heights[place] = low + (rank + 0.5) * step
    return heights


def _draw_floor(
    axes: Axes, rows: Sequence[Mapping[str, Any]], varied: Sequence[str], colours: Mapping[str, str]
) -> None:
    """A point a setting; the labels stand in a column at the right, so that none covers another."""
    axes.set(xlabel="memory floor of a round on the device, ms (not measured)", ylabel="MAT, tokens per round")
    axes.grid(alpha=0.3)
    if not rows:
        return
    for row in rows:
        axes.errorbar(row["floor_ms"], row["mat"], yerr=_errors(row), fmt="o", color=colours[row["config"]], capsize=2)
    low, high = axes.get_ylim()
    for row, height in zip(rows, label_heights([row["mat"] for row in rows], low, high), strict=True):
        axes.annotate(
            _label(row, varied),
            xy=(row["floor_ms"], row["mat"]),
            xytext=(1.04, (height - low) / (high - low)),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=colours[row["config"]],
            arrowprops={"color": colours[row["config"]], **_LEADER},
        )
    axes.set_ylim(low, high)


def _draw_key(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, colours: Mapping[str, str]) -> None:
    for name, colour in colours.items():
        line = sorted((row for row in rows if row["config"] == name and row[key] is not None), key=lambda row: row[key])
        if line:
            bars = [[_errors(row)[side][0] for row in line] for side in (0, 1)]
            values, mats = [row[key] for row in line], [row["mat"] for row in line]
            axes.errorbar(values, mats, yerr=bars, fmt="o-", color=colour, capsize=2, label=name)
    axes.set(xlabel=key, ylabel="MAT, tokens per round")
    axes.grid(alpha=0.3)
    axes.legend()


def _numeric_key(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str | None:
    """The only varied key, where its values are numbers and at least two."""
    if len(varied) != 1:
        return None
    values = {row[varied[0]] for row in rows} - {None}
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return varied[0] if numbers and len(values) > 1 else None


def _errors(row: Mapping[str, Any]) -> list[list[float]]:
    """Lengths of a point's bars; a bootstrap's interval need not hold the value itself."""
    return [[max(0.0, row["mat"] - row["mat_low"])], [max(0.0, row["mat_high"] - row["mat"])]]


def _label(row: Mapping[str, Any], varied: Sequence[str]) -> str:
    return " ".join((row["config"], *(f"{key}={row[key]}" for key in varied if row[key] is not None)))
