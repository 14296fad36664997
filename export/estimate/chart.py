"""The estimate as a bar chart: for each graph and for the round, the floor beside what the compiler expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from export.estimate.estimate import Estimate
    from export.estimate.graph import GraphEstimate
    from export.estimate.round import Round

_WIDTH = 0.38  # of the unit between two groups of bars


def require_chart_path(path: Path, bundles: Iterable[Path]) -> None:
    """Refuse, before the long work, a path where no chart can or may be written.

    Raises UsageError: another ending than .png, no such folder, a folder of that name, a place inside a bundle.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--chart {path}: the chart is a PNG; choose a name ending in .png")
    if not path.parent.is_dir():
        raise UsageError(f"--chart {path}: there is no folder {path.parent}; create it first")
    if path.is_dir():
        raise UsageError(f"--chart {path} is a folder; name a file")
    for bundle in bundles:
        if path.resolve().is_relative_to(bundle.resolve()):
            raise UsageError(
                f"--chart {path} lies in the bundle {bundle}, whose files are hashed; choose another place"
            )


def save_chart(estimate: Estimate, path: Path) -> None:
    """Write the chart as a PNG, over an older one; bars in milliseconds, with the compiler's bounds as whiskers.

    Raises UsageError where the file cannot be written.
    """
    from matplotlib.figure import Figure

    names = [graph.name for graph in estimate.graphs]
    names.append(f"round: {estimate.round}")
    bars: list[GraphEstimate | Round] = [*estimate.graphs, estimate.round]
    floors, times = [bar.floor_us / 1e3 for bar in bars], [bar.us / 1e3 for bar in bars]
    below = [(bar.us - bar.us_low) / 1e3 for bar in bars]
    above = [(bar.us_high - bar.us) / 1e3 for bar in bars]
    figure = Figure(figsize=(2.2 + 2.2 * len(bars), 4.2), layout="constrained")
    axes = figure.add_subplot()
    left, right = [i - _WIDTH / 2 for i in range(len(bars))], [i + _WIDTH / 2 for i in range(len(bars))]
    bandwidth = f"memory floor at {estimate.options.bandwidth_gbps:g} GB/s (assumed)"
    axes.bar(left, floors, _WIDTH, color="#9aa5b1", label=bandwidth)
    drawn = axes.bar(right, times, _WIDTH, yerr=(below, above), capsize=4, color="#2f6fb0", label=estimate.label)
    axes.bar_label(
        drawn, [f"{time:.3g} ms\n{bar.ratio:.2f} x floor" for time, bar in zip(times, bars, strict=True)], padding=3
    )
    axes.set_xticks(range(len(bars)), names, fontsize="small")
    axes.set_ylabel("ms")
    axes.margins(y=0.2)
    unreliable = ", UNRELIABLE: operations without a cost" if estimate.unreliable else ""
    axes.set_title(f"{estimate.label}, QNN {estimate.qnn_version}{unreliable}", fontsize="medium")
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(f"--chart {path} cannot be written ({error}); choose another place") from error
