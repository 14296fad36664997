"""A head's calibration on a tiny family: against the export's own ranges, in shards, in processes, for an export."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch

from calibration.errors import CalibrationError
from calibration.keepset import KeepSet
from calibration.observations import Observations, merge_all
from calibration.range_methods import RangeMethod
from calibration.ranges import Ranges
from calibration.report import write_calibration
from export.calibrating.mtp import calibrate_mtp
from export.calibrating.options import CalibrationOptions, Shard
from export.mtp.export import export_mtp

if TYPE_CHECKING:
    from pathlib import Path

    from export.calibrating.shards import Calibrated

    from ..mtp.conftest import Family

MINMAX = RangeMethod()
SUMS = {f"layers.{layer}.self_attn.add#2" for layer in range(4)}
"""Scores plus mask."""


def calibrate(family: Family, out: Path, keep_set: str | None = "100", **changes: Any) -> Calibrated:
    options = CalibrationOptions(family.calibration, keep_set, **changes)
    return calibrate_mtp(family.options(out, table=False), options, lambda _: None)


def export(family: Family, out: Path, **changes: Any) -> Path:
    """A bundle that is not compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.mtp.export.why_unavailable", lambda: "this test compiles nothing")
        export_mtp(family.options(out, **changes), lambda _: None)
    return out


@pytest.fixture(scope="module")
def calibrated(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.mtp.states._ANSWER_TOKENS", 48)
        return calibrate(family, tmp_path_factory.mktemp("calibrated"))


@pytest.fixture(scope="module")
def bundle(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that calibrates by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.mtp.states._ANSWER_TOKENS", 48)
        return export(family, tmp_path_factory.mktemp("bundles") / "by_itself")


def scales(bundle: Path) -> dict[str, Any]:
    """Every scale and zero point of the quantised graph."""
    graph = onnx.load(str(bundle / "graphs/mtp_step.qdq.onnx")).graph
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.name.endswith((".scale", ".zero"))
    }


def test_ranges_are_those_of_an_export_that_calibrates_by_itself(calibrated: Calibrated, bundle: Path) -> None:
    own = Ranges.load(bundle / "ranges.json")
    found = calibrated.observations
    masks = {"mask_sliding", "mask_full"}
    # The export also joins what the table can reach, which is not a matter of prompts.
    assert found.tensors.keys() == own.bounds.keys() - masks
    for name in found.tensors.keys() - SUMS - {"embedding"}:
        assert found.own_range(name, MINMAX) == own.of(name), name
    assert any(own.of(name)[0] < -90 for name in SUMS)
    for name in SUMS:
        low, high = found.own_range(name, MINMAX)
        assert -90 < low <= high == own.of(name)[1]


def test_an_export_with_the_file_has_the_same_scales(
    family: Family, calibrated: Calibrated, bundle: Path, tmp_path: Path
) -> None:
    write_calibration(calibrated.observations, tmp_path / "ranges.json", MINMAX)
    calibrated.keep_set.save(tmp_path / "keep.json")
    files = {"calibration": str(tmp_path / "ranges.json"), "keep_set": str(tmp_path / "keep.json")}
    given = scales(export(family, tmp_path / "given", **files))
    wanted = scales(bundle)
    assert given.keys() == wanted.keys()
    different = {name for name in wanted if not np.array_equal(wanted[name], given[name])}
    # Masked sums reach down to the mask in both; only here is what lies below it left out.
    assert different <= {f"{name}.{part}" for name in SUMS for part in ("scale", "zero")}
    manifest = json.loads((tmp_path / "given" / "manifest.json").read_text())
    assert manifest["calibration"]["source"].startswith("prompts:")


def test_states_and_tables_are_tied(calibrated: Calibrated) -> None:
    ranges, observations = calibrated.observations.ranges(MINMAX), calibrated.observations
    tied = [observations.own_range(name, MINMAX) for name in ("embedding", "hidden", "next_hidden")]
    union = min(low for low, _ in tied), max(high for _, high in tied)
    assert all(low > union[0] or high < union[1] for low, high in tied)  # no one of them says it all
    assert ranges.of("hidden") == ranges.of("embedding") == ranges.of("next_hidden")
    assert ranges.of("hidden")[0] <= union[0]
    assert ranges.of("hidden")[1] >= union[1]


def test_hidden_states_are_the_verifiers(family: Family, calibrated: Calibrated) -> None:
    """transformers' own forward over prompt and answer: the range of hidden holds the recorded rows."""
    ids = family.tokenizer.apply_chat_template(
        [{"role": "user", "content": json.loads(family.calibration.read_text().splitlines()[0])["question"]}],
        tokenize=True, add_generation_prompt=True, return_dict=True,
    )["input_ids"]  # fmt: skip
    with torch.no_grad():
        hidden = family.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1].numpy()
    low, high = calibrated.observations.tensors["hidden"].bounds
    assert low <= hidden.min() + 1e-5
    assert high >= hidden.max() - 1e-5


def test_shards_merge_to_one_run_bit_for_bit(family: Family, calibrated: Calibrated, tmp_path: Path) -> None:
    calibrated.keep_set.save(tmp_path / "keep.json")
    parts = []
    for number in (2, 1):
        part = calibrate(family, tmp_path, str(tmp_path / "keep.json"), shard=Shard(number, 2)).observations
        assert part.seen == (number - 1,)
        part.save(tmp_path / str(number))
        parts.append(Observations.load(tmp_path / str(number)))
    merge_all(parts).save(tmp_path / "merged")
    calibrated.observations.save(tmp_path / "whole")
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_jobs_in_processes_give_the_same_file(family: Family, calibrated: Calibrated, tmp_path: Path) -> None:
    """The keep set is counted from all answers, wherever they came from."""
    found = calibrate(family, tmp_path, jobs=3)  # two prompts: two jobs
    assert found.keep_set.sha256 == calibrated.keep_set.sha256
    found.observations.save(tmp_path / "jobs")
    calibrated.observations.save(tmp_path / "whole")
    assert (tmp_path / "jobs").read_bytes() == (tmp_path / "whole").read_bytes()


def test_what_cannot_be_calibrated_is_told(family: Family, tmp_path: Path) -> None:
    settings = family.options(tmp_path, table=False, verifier=None)
    options = CalibrationOptions(family.calibration, "100")
    with pytest.raises(CalibrationError, match="no verifier is given"):
        calibrate_mtp(settings, options, lambda _: None)
    keep = tmp_path / "keep.json"
    KeepSet(np.arange(100), family.head.config.vocab_size).save(keep)
    with pytest.raises(CalibrationError, match="shard 3/3 has no prompt"):
        calibrate(family, tmp_path, str(keep), shard=Shard(3, 3))
