"""Files of observations: shards that merge to one run's file, ties, given ranges, and files that must not be used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from calibration.errors import CalibrationError
from calibration.observations import Observations, Subject, merge_all
from calibration.observers import TensorObserver
from calibration.range_methods import RangeMethod
from calibration.report import observations_path, output_paths, write_calibration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAMES = ("x", "moved", "y", "keys", "clipped", "looked_up")
SUBJECT = Subject(
    kind="slm",
    hashes={"checkpoint": "c0", "keep_set": "k0", "prompts": "p0", "verifier": None},
    prompts=6,
    settings={"rows": 8, "two_bit": "native", "head_bits": None},
    owners={"x": "x", "moved": "x", "y": "y", "keys": "keys", "looked_up": "looked_up"},
    given={"keys": (-1.28, 1.27)},
    limits={"clipped": (-0.5, 0.5)},
    reach={"looked_up": (-9.0, 9000.0)},
)


def values(number: int, name: str) -> np.ndarray:
    """What prompt `number` shows of a tensor."""
    seed = [number, NAMES.index(name)]
    return (np.random.default_rng(seed).standard_t(3, (4, 50)) * 2.0**number).astype(np.float32)


def observations(numbers: Sequence[int], **changes: Any) -> Observations:
    tensors = {name: TensorObserver() for name in NAMES}
    for number in numbers:
        for name, observer in tensors.items():
            observer.observe(values(number, name))
    return Observations(replace(SUBJECT, **changes), tuple(numbers), tensors)


def seen(name: str, numbers: Sequence[int] = range(6)) -> np.ndarray:
    return np.concatenate([values(number, name).ravel() for number in numbers])


@pytest.mark.parametrize("shards", [2, 3, 6])
def test_shards_merge_to_the_file_of_one_run(tmp_path: Path, shards: int) -> None:
    observations(range(6)).save(tmp_path / "whole")
    parts = []
    for index in reversed(range(shards)):
        observations(range(index, 6, shards)).save(tmp_path / f"{index}")
        parts.append(Observations.load(tmp_path / f"{index}"))
    merge_all(parts).save(tmp_path / "merged")
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_tied_tensors_have_the_union_and_given_ones_no_range() -> None:
    ranges = observations(range(6)).ranges(RangeMethod())
    both = np.concatenate([seen("x"), seen("moved")])
    assert ranges.of("x") == ranges.of("moved") == (both.min(), both.max())
    assert ranges.of("y") == (seen("y").min(), seen("y").max())
    assert ranges.of("clipped") == (seen("clipped").min(), seen("clipped").max())
    assert ranges.of("looked_up") == (seen("looked_up").min(), 9000.0)  # seen below, reachable above
    assert "keys" not in ranges.bounds
    assert ranges.source == "prompts:p0"


def test_the_method_is_applied_before_the_union() -> None:
    ranges = observations(range(6)).ranges(RangeMethod("percentile", 90))
    kept = [np.sort(seen(name))[60:-60] for name in ("x", "moved")]  # 5% of 1,200 on each side
    width = max(observations([5]).tensors[name].width for name in ("x", "moved"))
    assert ranges.of("x")[0] == pytest.approx(min(array[0] for array in kept), abs=width)
    assert ranges.of("x")[1] == pytest.approx(max(array[-1] for array in kept), abs=width)
    assert ranges.of("moved") == ranges.of("x")
    assert ranges.source == "prompts:p0, percentile 90"


def test_a_part_of_the_prompts_says_so() -> None:
    assert observations([0, 3]).ranges(RangeMethod()).source == "prompts:p0 (2 of 6)"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"hashes": {**SUBJECT.hashes, "keep_set": "k1"}}, "hashes"),
        ({"settings": {"rows": 9}}, "settings"),
        ({"kind": "mtp", "prompts": 7}, "kind, prompts"),
    ],
)
def test_shards_of_other_calibrations_are_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(CalibrationError, match=f"differ in {what};"):
        observations([0]).merge(observations([1], **changes))


def test_a_shard_counts_once() -> None:
    with pytest.raises(CalibrationError, match=r"prompts \[2\] are in two shards"):
        observations([0, 2]).merge(observations([1, 2]))


def test_numbers_that_are_not_finite_stop_it_and_are_named(tmp_path: Path) -> None:
    broken = observations(range(6))
    broken.tensors["y"].observe(np.float32([np.inf]))
    with pytest.raises(CalibrationError, match=r"1 tensors hold NaN or infinity, the first are \['y'\]"):
        write_calibration(broken, tmp_path / "ranges.json", RangeMethod())
    assert not (tmp_path / "ranges.json").exists()


def test_a_tensor_without_values_is_named() -> None:
    empty = observations([0])
    with pytest.raises(CalibrationError, match="more: no finite value"):
        Observations(SUBJECT, (0,), {**empty.tensors, "more": TensorObserver()}).ranges(RangeMethod())


def test_files_that_must_not_be_used(tmp_path: Path) -> None:
    path = tmp_path / "a.observations.safetensors"
    observations([0]).save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with pytest.raises(CalibrationError, match="no file of observations"):
        Observations.load(path)
    # one count more than there are values
    path.write_bytes(data)
    observer = Observations.load(path).tensors["y"]
    observer.bins[5000] += 1
    Observations(SUBJECT, (0,), {"y": observer}).save(path)
    with pytest.raises(CalibrationError, match="counts of 'y' do not add up"):
        Observations.load(path)
    path.write_bytes(data.replace(b'\\"schema_version\\": 1', b'\\"schema_version\\": 7'))
    with pytest.raises(CalibrationError, match="schema_version 7"):
        Observations.load(path)
    with pytest.raises(CalibrationError, match="absent"):
        Observations.load(tmp_path / "absent")


def test_the_report_writes_all_files(tmp_path: Path) -> None:
    out = tmp_path / "ranges.json"
    result = write_calibration(observations(range(6)), out, RangeMethod())
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in output_paths(out)}
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert result.fields["tensors"] == 5
    assert result.fields["given"] == [{"name": "keys", "low": -1.28, "high": 1.27}]
    assert result.fields["prompts"] == 6
    assert observations_path(out).is_file()
