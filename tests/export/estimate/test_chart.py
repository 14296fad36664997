"""The chart: where it may be written, and that it is a picture of the figures."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from export.estimate import Estimate, EstimateOptions, save_chart
from export.estimate.chart import require_chart_path
from export.estimate.round import drafting_round
from quant.errors import UsageError

from .test_round import DRAFT, STEP

if TYPE_CHECKING:
    from pathlib import Path


def result(missing_costs: int = 0) -> Estimate:
    graphs = (dataclasses.replace(STEP, missing_costs=missing_costs), DRAFT)
    return Estimate(graphs, drafting_round(graphs), "v2.51.0", EstimateOptions(40.0))


@pytest.mark.parametrize("missing_costs", [0, 1])
def test_bars_are_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing_costs: int) -> None:
    """Step 0.1 ms, draft 1 ms, round 1.4 ms; floors half of it."""
    drawn: list[Figure] = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), savefig(self, *a, **k))[1])
    save_chart(result(missing_costs), tmp_path / "c.png")
    (axes,) = drawn[0].axes
    floors, times = ([bar.get_height() for bar in bars] for bars in axes.containers if hasattr(bars[0], "get_height"))
    assert floors == pytest.approx([0.05, 0.5, 0.7])
    assert times == pytest.approx([0.1, 1.0, 1.4])
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["memory floor at 40 GB/s (assumed)", "estimate (proxy chip)"]
    assert ("UNRELIABLE" in axes.get_title()) is bool(missing_costs)
    assert imread(tmp_path / "c.png").ndim == 3


def test_an_older_chart_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "c.png").write_text("old")
    save_chart(result(), tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("c.svg", "choose a name ending in .png"),
        ("chart", "choose a name ending in .png"),
        ("no such folder/c.png", "there is no folder"),
        ("folder.png", "is a folder; name a file"),
        ("bundle/c.png", "lies in the bundle"),
        ("bundle/graphs/c.png", "lies in the bundle"),
        ("link/c.png", "lies in the bundle"),
    ],
)
def test_places_where_no_chart_goes(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "bundle" / "graphs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "bundle")
    with pytest.raises(UsageError, match=message):
        require_chart_path(tmp_path / name, [tmp_path / "bundle"])


def test_a_place_beside_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    require_chart_path(tmp_path / "bundle.png", [tmp_path / "bundle"])


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        save_chart(result(), tmp_path / "gone" / "c.png")
