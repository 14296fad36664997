"""Rows, intervals and files of a sweep whose counts are made up."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.stats
from PIL import Image

from hyco_npu.decode.config import load_config
from hyco_npu.decode.cost import DraftCost
from hyco_npu.sweep.picture import label_heights
from hyco_npu.sweep.plan import Setting
from hyco_npu.sweep.report import COLUMNS, Sweep, check_out, paired_ratio, write_sweep
from hyco_npu.sweep.run import Measured, TextCounts
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def measured(counts: list[tuple[int, int]], cost: DraftCost | None = None) -> Measured:
    """Tokens with the prefill's, and rounds, of each prompt."""
    texts = [TextCounts(str(n), t, r, 128 * r, 1000 * r, 0.5 * r) for n, (t, r) in enumerate(counts)]
    return Measured(tuple(texts), cost or DraftCost(4_000_000, 2_000_000, 60_000_000))


def setting(name: str, **varied: Any) -> Setting:
    return Setting(name, {key.replace("__", "."): value for key, value in varied.items()}, load_config("hyco"))


@pytest.fixture
def sweep() -> Sweep:
    settings = [setting("hyco", mtp__bits=4), setting("hyco", mtp__bits=8), setting("plain"), setting("idle")]
    counts = [[(13, 4), (21, 5)], [(13, 3), (21, 4)], [(13, 12), (21, 20)], [(1, 0), (1, 0)]]
    return Sweep(settings, [measured(one) for one in counts], reference=1, seed=0)


def test_figures_are_ratios_of_sums(sweep: Sweep) -> None:
    first, second, plain, idle = sweep.rows()
    assert list(first) == ["config", "mtp.bits", *COLUMNS]
    assert (first["config"], first["mtp.bits"], plain["mtp.bits"]) == ("hyco", 4, None)
    assert (first["prompts"], first["tokens"], first["rounds"]) == (2, 34, 9)
    assert first["mat"] == pytest.approx(32 / 9)
    assert plain["mat"] == 1.0
    # a sample of two prompts is one of them twice, or both
    assert (first["mat_low"], first["mat_high"]) == pytest.approx((3.0, 4.0))
    assert (first["bytes_up"], first["bytes_down"]) == (128, 1000)
    assert first["tokens_per_s"] == pytest.approx(32 / 4.5)
    assert (first["floor_ms"], first["graph_bytes"], first["table_bytes"]) == (pytest.approx(1.0), 4_000_000, 2_000_000)
    assert first["ratio"] == pytest.approx((32 / 9) / (32 / 7))
    assert (second["ratio"], second["ratio_low"], second["ratio_high"]) == (1.0, 1.0, 1.0)
    empty = ("mat", "mat_low", "mat_high", "bytes_up", "bytes_down", "tokens_per_s", "ratio", "ratio_low", "ratio_high")
    assert [idle[name] for name in empty] == [None] * len(empty)


def test_without_reference_there_are_no_ratios(sweep: Sweep) -> None:
    rows = Sweep(sweep.settings, sweep.measured, None, 0).rows()
    assert not any(name.startswith("ratio") for row in rows for name in row)


def test_the_ratios_interval_is_a_paired_bootstraps() -> None:
    rng = np.random.default_rng(0)
    length = rng.integers(40, 120, 30)
    own = np.stack([length, -(-length // rng.integers(3, 6, 30))])
    other = np.stack([length, -(-length // rng.integers(2, 4, 30))])

    def ratio(a: Any, b: Any, c: Any, d: Any, axis: int) -> Any:
        return (a.sum(axis) / b.sum(axis)) / (c.sum(axis) / d.sum(axis))

    expected = scipy.stats.bootstrap(
        (*own, *other), ratio, paired=True, method="percentile", n_resamples=10_000, rng=1, vectorized=True
    ).confidence_interval
    found = paired_ratio(own, other, seed=0)
    assert found is not None
    assert found[0] == pytest.approx(own[0].sum() / own[1].sum() / (other[0].sum() / other[1].sum()))
    assert found[1:] == pytest.approx((expected.low, expected.high), rel=5e-3)


def test_samples_without_a_round_are_left_out_of_the_ratio() -> None:
    own, other = np.array([[0, 8], [0, 2]]), np.array([[0, 8], [0, 4]])
    assert paired_ratio(own, other, seed=0) == (2.0, 2.0, 2.0)
    assert paired_ratio(own, np.zeros((2, 2), int), seed=0) is None


def test_files_hold_the_rows(sweep: Sweep, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    rows = write_sweep(out, sweep, {"plan": {"seed": 0}})
    assert rows == sweep.rows()
    assert {file.name for file in tmp_path.iterdir()} == {"sweep"}
    with (out / "sweep.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows] == read
    record = json.loads((out / "sweep.json").read_text())
    assert (record["schema_version"], record["rows"], record["plan"]) == (1, rows, {"seed": 0})
    assert record["texts"][0][1]["tokens"] == 21
    assert record["columns"] == COLUMNS
    assert "not measured" in record["columns"]["floor_ms"]


def test_the_picture_grows_with_its_labels(tmp_path: Path) -> None:
    heights = []
    for count in (2, 60):
        settings = [setting("hyco", slm__window=64 * n, mtp__bits=4) for n in range(1, count + 1)]
        results = [measured([(13, 4), (21, 5 + n % 3)]) for n in range(count)]
        write_sweep(tmp_path / str(count), Sweep(settings, results, None, 0), {})
        with Image.open(tmp_path / str(count) / "sweep.png") as image:
            heights.append(image.height)
    assert heights[0] == 450
    # a line of 8 points, 0.11 inches, at 100 pixels an inch
    assert heights[1] >= 60 * 12


def test_a_numeric_key_gets_a_curve_beside_the_points(tmp_path: Path) -> None:
    widths = {}
    for name, values in {"numbers": [4, 8], "words": ["exact", "epsilon"], "flags": [True, False]}.items():
        settings = [setting("hyco", a__b=value) for value in values]
        write_sweep(tmp_path / name, Sweep(settings, [measured([(13, 4)])] * 2, None, 0), {})
        with Image.open(tmp_path / name / "sweep.png") as image:
            widths[name] = image.width
    assert widths["numbers"] > widths["words"] == widths["flags"]


def test_labels_keep_their_order_and_their_distance() -> None:
    heights = label_heights([3.0, 1.0, 3.0, 2.99], 0.0, 4.0)
    assert sorted(heights) == [0.5, 1.5, 2.5, 3.5]
    assert heights[1] < heights[3] < heights[0] < heights[2]


def test_only_a_sweep_is_replaced_and_only_with_force(sweep: Sweep, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    check_out(out, force=False)
    write_sweep(out, sweep, {})
    with pytest.raises(UsageError, match="exists; name another, or replace it with --force"):
        check_out(out, force=False)
    check_out(out, force=True)
    with pytest.raises(UsageError, match="was not written by this command"):
        check_out(tmp_path, force=True)
