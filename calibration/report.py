"""What a calibration leaves behind: observations, ranges for the export, and a picture of the tensors to look at."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.jsonfile import replace_file
from calibration.observers import BINS, HALF
from calibration.suspicious import outlier_ratio, suspicious

if TYPE_CHECKING:
    from pathlib import Path

    from calibration.observations import Observations
    from calibration.range_methods import RangeMethod
    from calibration.ranges import Ranges
    from calibration.suspicious import Finding

_PICTURES = 6
_COLUMNS = 3
_BARS = 64


@dataclass(frozen=True)
class CalibrationResult:
    """A finished calibration: `ranges` are written at `out`; `given` lists tensors with the checkpoint's parameters."""

    out: Path
    method: str
    ranges: Ranges
    observations: Observations
    findings: list[Finding]

    @property
    def fields(self) -> dict[str, Any]:
        """The result for JSON."""
        subject = self.observations.subject
        return {
            "out": self.out,
            "observations": observations_path(self.out),
            "chart": self.out.with_suffix(".png"),
            "kind": subject.kind,
            "method": self.method,
            "source": self.ranges.source,
            "sha256": self.ranges.sha256,
            "tensors": self.ranges.count,
            "given": [{"name": name, "low": low, "high": high} for name, (low, high) in sorted(subject.given.items())],
            "suspicious": [asdict(finding) for finding in self.findings],
            "prompts": len(self.observations.seen),
            "prompts_in_all": subject.prompts,
            "hashes": dict(subject.hashes),
        }


def observations_path(out: Path) -> Path:
    """Where the observations behind the ranges at `out` lie."""
    return out.with_suffix(".observations.safetensors")


def output_paths(out: Path) -> tuple[Path, Path, Path]:
    """All files of a calibration: ranges, observations, picture."""
    return out, observations_path(out), out.with_suffix(".png")


def write_calibration(observations: Observations, out: Path, method: RangeMethod) -> CalibrationResult:
    """Write observations, picture and, last, the ranges. Raises CalibrationError where values are not finite."""
    observations.save(observations_path(out))
    findings = suspicious(observations)
    ranges = observations.ranges(method)
    _save_picture(observations, ranges, findings, out.with_suffix(".png"))
    ranges.save(out)
    return CalibrationResult(out, str(method), ranges, observations, findings)


def _save_picture(observations: Observations, ranges: Ranges, findings: list[Finding], path: Path) -> None:
    """Histograms of the tensors with findings, then of those with the widest tails, with their ranges."""
    from matplotlib.figure import Figure

    ratios = {name: outlier_ratio(observer) or 0.0 for name, observer in observations.tensors.items()}
    tails = sorted(ranges.bounds, key=lambda name: (-ratios[name], name))
    names = list(dict.fromkeys([*(finding.name for finding in findings), *tails]))[:_PICTURES]
    rows = -(-len(names) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 2.8 * rows), layout="constrained")
    for index, name in enumerate(names):
        axes = figure.add_subplot(rows, _COLUMNS, index + 1)
        observer = observations.tensors[name]
        counts = observer.bins.reshape(-1, BINS // (2 * _BARS)).sum(axis=1)
        edges = (np.arange(0, BINS + 1, BINS // (2 * _BARS)) - HALF) * observer.width
        shown = np.flatnonzero(counts)
        first, last = (shown[0], shown[-1] + 1) if shown.size else (0, len(counts))
        axes.stairs(counts[first:last], edges[first : last + 1], fill=True, color="#2f6fb0")
        for end in ranges.bounds.get(name, observations.subject.given.get(name, ())):
            axes.axvline(end, color="#c0562f", linestyle="--")
        axes.set_yscale("symlog")
        axes.set_title(name, fontsize="small")
    figure.suptitle("Values other than 0, and their ranges (dashed)", fontsize="medium")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    replace_file(path, picture.getvalue())
