"""Activation ranges: the union by hand, and files that must not be used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from calibration.errors import CalibrationError
from calibration.ranges import Ranges

if TYPE_CHECKING:
    from pathlib import Path


def test_tied_tensors_have_their_union_and_others_their_own() -> None:
    ranges = Ranges({"a": (-1.0, 2.0), "b": (-3.0, 0.5), "c": (4.0, 5.0), "d": (0.0, 1.0)}, "prompts:x")
    tied = ranges.tied({"a": "a", "b": "a", "c": "c", "absent": "a"})
    assert dict(tied.bounds) == {"a": (-3.0, 2.0), "b": (-3.0, 2.0), "c": (4.0, 5.0), "d": (0.0, 1.0)}
    assert tied.source == "prompts:x"
    assert tied.tied({"a": "a", "b": "a"}).sha256 == tied.sha256


def test_merge_is_the_union() -> None:
    first = Ranges({"a": (-1.0, 2.0), "b": (0.0, 1.0)}, "prompts:12ab")
    second = Ranges({"a": (-0.5, 3.0), "c": (-4.0, -2.0)}, "synthetic:seed0")
    merged = first.merge(second)
    assert dict(merged.bounds) == {"a": (-1.0, 3.0), "b": (0.0, 1.0), "c": (-4.0, -2.0)}
    assert merged.count == 3
    assert merged.source == "prompts:12ab + synthetic:seed0"
    assert merged.merge(first).source == merged.source
    assert dict(merged.merge(first).bounds) == dict(merged.bounds)
    assert dict(first.bounds) == {"a": (-1.0, 2.0), "b": (0.0, 1.0)}


def test_save_and_load_keep_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    ranges = Ranges({"x": (-0.1, 1 / 3), "y": (-3.4028234663852886e38, 5e-324), "z": (2, 2)}, "prompts:12ab")
    ranges.save(path)
    loaded = Ranges.load(path)
    assert dict(loaded.bounds) == {"x": (-0.1, 1 / 3), "y": (-3.4028234663852886e38, 5e-324), "z": (2.0, 2.0)}
    assert loaded.source == "prompts:12ab"
    assert loaded.sha256 == ranges.sha256
    assert json.loads(path.read_text())["tensors"] == 3


def test_the_hash_does_not_depend_on_order_but_on_everything_else() -> None:
    bounds = {"a": (0.0, 1.0), "b": (0.0, 2.0)}
    ranges = Ranges(bounds, "s")
    assert ranges.sha256 == Ranges(dict(reversed(bounds.items())), "s").sha256
    others = [Ranges(bounds, "t"), Ranges({"a": (0.0, 1.0)}, "s"), Ranges({**bounds, "b": (0.0, 2.5)}, "s")]
    assert len({ranges.sha256, *(other.sha256 for other in others)}) == 4


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (float("nan"), 1.0, r"\[nan, 1.0\]"),
        (0.0, float("inf"), r"\[0.0, inf\]"),
        (float("-inf"), 0.0, r"\[-inf, 0.0\]"),
        (1.0, 0.5, "low 1.0 above high 0.5"),
    ],
)
def test_impossible_bounds_are_named(low: float, high: float, message: str) -> None:
    with pytest.raises(CalibrationError, match=rf"'layer\.3'.*{message}"):
        Ranges({"good": (0.0, 1.0), "layer.3": (low, high)}, "synthetic:seed0")


def test_bounds_are_the_ranges_own() -> None:
    bounds = {"a": (0.0, 1.0)}
    ranges = Ranges(bounds, "s")
    bounds["a"] = (0.0, 9.0)
    assert ranges.of("a") == (0.0, 1.0)
    with pytest.raises(CalibrationError, match=r"tensor 'b' has no range among the 1 calibrated"):
        ranges.of("b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 9}, "schema_version 9"),
        ({"bounds": [1]}, "`bounds` must be an object"),
        ({"source": 3}, "`source` a text"),
        ({"bounds": {"a": [0.0, 2.0]}}, "was altered"),
        ({"tensors": 2}, "was altered"),
        ({"sha256": "0"}, "was altered"),
        ({"bounds": {"a": [0.0]}}, r"range of 'a' is \[0.0\]"),
        ({"bounds": {"a": ["0", "1"]}}, "range of 'a' is"),
        ({"bounds": {"a": [True, 1]}}, "range of 'a' is"),
        ({"bounds": {"a": [0.0, float("inf")]}}, r"'a' is \[0.0, inf\]"),
        ({"bounds": {"a": [2.0, 1.0]}}, "low 2.0 above high 1.0"),
        ({"bounds": {"a": [0, 10**400]}}, "too large"),
    ],
)
def test_an_altered_file_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "ranges.json"
    Ranges({"a": (0.0, 1.0)}, "prompts:12ab").save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CalibrationError, match=rf"ranges\.json.*{message}"):
        Ranges.load(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"none\.json cannot be read"):
        Ranges.load(tmp_path / "none.json")
