"""A result's pictures as SVG: rounds over iterations with the temperature, parts stacked, distribution of rounds."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from hyco_npu.bench.runs import warm_up_of
from hyco_npu.bench.summary import stacked_medians

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from device_runner.measurement import Block, Measurement
    from hyco_npu.bench.result import BenchResult

_COLOURS = {"A": "#2f6fb0", "B": "#c0642d"}
_LOG_ABOVE = 4.0
"""Rounds so many times slower than the slowest timed one ask for a logarithmic axis: they are shown, never cut off."""
_MAX_NAMED_BLOCKS = 16


def rounds_svg(result: BenchResult) -> bytes:
    """Every round of the timed blocks in the order of time: timed ones filled, warm-up hollow; blocks shaded."""
    measurement = result.measurement
    figure, axes = _figure(11.0, 4.0)
    blocks = [block for block in measurement.blocks if not block.profiled]
    starts = np.cumsum([0, *(len(block.rounds) for block in blocks)])
    for place, block in enumerate(blocks):
        _draw_block(axes, block, int(starts[place]), warm_up_of(measurement), gid=f"block-{place}")
        if place % 2:
            axes.axvspan(starts[place] - 0.5, starts[place + 1] - 0.5, color="0.93", zorder=0, linewidth=0)
        if len(blocks) <= _MAX_NAMED_BLOCKS:
            middle = (starts[place] + starts[place + 1] - 1) / 2
            name = _in_lines(block.bundle, block.runner.perf_mode)
            axes.text(middle, 1.01, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=7)
    _scale_times(axes, result)
    axes.set(xlabel="round, over all timed blocks (hollow: warm-up)", ylabel=f"ms, {result.time_label}")
    axes.set_xlim(-0.5, starts[-1] - 0.5)
    _draw_temperature(axes, blocks, starts)
    return _svg(figure)


def parts_svg(result: BenchResult) -> bytes:
    """For each bundle and performance mode the parts' medians on each other; a diamond at the round's median."""
    shown = [summary for summary in result.runs if summary.round_ms is not None]
    figure, axes = _figure(3.6 + 1.6 * len(shown), 4.2)
    stacks = [stacked_medians(summary) for summary in shown]
    names = dict.fromkeys(name for stack in stacks for name in stack)
    bottoms = np.zeros(len(shown))
    for index, name in enumerate(names):
        heights = np.array([stack.get(name, 0.0) for stack in stacks])
        bars = axes.bar(range(len(shown)), heights, 0.6, bottom=bottoms, color=_part_colour(name, index), label=name)
        for place, bar in enumerate(bars):
            bar.set_gid(f"part-{name}-{place}")
        bottoms += heights
    medians = [summary.round_ms.median for summary in shown if summary.round_ms is not None]
    axes.plot(range(len(shown)), medians, "D", color="black", markersize=5, label="round", gid="round-medians")
    axes.set_xticks(range(len(shown)), [_in_lines(summary.run.label, summary.run.perf_mode) for summary in shown])
    axes.set(ylabel=f"median, ms, {result.time_label}", xlim=(-0.6, len(shown) - 0.4), ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7, frameon=False, reverse=True)
    return _svg(figure)


def distribution_svg(result: BenchResult) -> bytes:
    """For each bundle and performance mode the share of timed rounds that took at most so long."""
    figure, axes = _figure(7.0, 3.6)
    styles = ("-", "--", ":", "-.")
    modes = list(dict.fromkeys(summary.run.perf_mode for summary in result.runs))
    for summary in result.runs:
        times = sorted(sample.total_ms for sample in summary.run.timed_rounds)
        if times:
            shares = np.arange(1, len(times) + 1) / len(times)
            style = styles[modes.index(summary.run.perf_mode) % len(styles)]
            colour = _COLOURS.get(summary.run.label, "black")
            axes.step(times, shares, where="post", linestyle=style, color=colour, label=summary.run.name)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    for share in (0.5, 0.9, 0.99):
        axes.axhline(share, color="0.8", linewidth=0.6, zorder=0)
    axes.set(xlabel=f"ms, {result.time_label}", ylabel="share of timed rounds", ylim=(0, 1.02))
    return _svg(figure)


def has_temperature(measurement: Measurement) -> bool:
    """Whether any timed block tells the skin's temperature."""
    return any(_temperatures(block) for block in measurement.blocks if not block.profiled)


def _draw_block(axes: Axes, block: Block, start: int, warm_up: int, *, gid: str) -> None:
    """Points of one block, with SVG ids `GID-warm-up` and `GID-timed`."""
    times = np.array([sample.total_ms for sample in block.rounds])
    places = start + np.arange(len(times))
    colour = _COLOURS.get(block.bundle, "black")
    point: dict[str, Any] = {"marker": "o", "markersize": 3.0, "linewidth": 0.6, "color": colour}
    axes.plot(places[:warm_up], times[:warm_up], linestyle="", fillstyle="none", gid=f"{gid}-warm-up", **_hollow(point))
    axes.plot(places[warm_up:], times[warm_up:], gid=f"{gid}-timed", **point)


def _hollow(point: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key != "linewidth"}


def _scale_times(axes: Axes, result: BenchResult) -> None:
    timed = [sample.total_ms for summary in result.runs for sample in summary.run.timed_rounds]
    shown = [sample.total_ms for summary in result.runs for block in summary.run.blocks for sample in block.rounds]
    if timed and max(shown) > _LOG_ABOVE * max(timed):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)


def _draw_temperature(axes: Axes, blocks: list[Block], starts: np.ndarray) -> None:
    """The hottest skin sensor before and after each block, on an axis of its own; none where no block tells it."""
    points = [
        (starts[place + (when == "after")] - 0.5, skin_c)
        for place, block in enumerate(blocks)
        for when, skin_c in _temperatures(block)
    ]
    if not points:
        return
    right = axes.twinx()
    places, degrees = zip(*points, strict=True)
    right.plot(places, degrees, "s--", color="#b02f4f", markersize=4, linewidth=0.8, gid="skin", clip_on=False)
    right.set_ylabel("skin, °C", color="#b02f4f")
    right.margins(y=0.3)


def _temperatures(block: Block) -> list[tuple[str, float]]:
    found = []
    for when, facts in (("before", block.before), ("after", block.after)):
        skin_c = None if facts is None or facts.thermal is None else facts.thermal.hottest_c("skin")
        if skin_c is not None:
            found.append((when, skin_c))
    return found


def _part_colour(name: str, index: int) -> Any:
    """Steps of the head in blues, passes of the SLM in oranges, the rest by a palette."""
    from matplotlib import colormaps

    stem, _, number = name.rpartition("_")
    if stem in _GRAPH_COLOURS and number.isdigit():
        return colormaps[_GRAPH_COLOURS[stem]](0.85 - 0.13 * ((int(number) - 1) % 5))
    return "0.6" if name == "other" else colormaps["Set2"](index % 8)


def _in_lines(label: str, perf_mode: str | None) -> str:
    """A block's name, narrow: sustained_high_performance takes three lines."""
    return "\n".join([label, *(perf_mode or "").split("_")])


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Figure) -> bytes:
    """The figure's file; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "hyco-npu", "svg.fonttype": "path", "path.simplify": False}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


_GRAPH_COLOURS = {"mtp_step": "Blues", "slm_pass": "Oranges"}
