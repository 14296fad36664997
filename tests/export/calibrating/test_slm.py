"""An SLM's calibration on the family: ties of caches, given ranges, clips, shards; against the export's own ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from calibration.errors import ResponseFileError
from calibration.observations import merge_all
from calibration.prompts import encode_prompt, read_prompts
from calibration.range_methods import RangeMethod
from calibration.ranges import Ranges
from calibration.responses import Response, write_responses
from export.bundle import open_bundle
from export.calibrating.options import CalibrationOptions, Shard
from export.calibrating.slm import calibrate_slm
from export.checkpoint.reader import CheckpointReader
from export.slm import export as export_module
from export.slm.export import export_slm
from export.slm.options import SlmExportOptions
from export.slm.sources import gather_texts, open_slm_sources
from hyco_npu.family import CALIBRATION_PROMPTS, SLM_DIR, VERIFIER_DIR

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from calibration.range_methods import MethodName
    from export.calibrating.shards import Calibrated

MINMAX = RangeMethod()
OWNERS = range(3)
LAYERS = 6


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts; they are read without answers."""
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("".join(CALIBRATION_PROMPTS.read_text().splitlines(keepends=True)[:2]))
    return file


def settings(prompts: Path, out: Path, **changes: Any) -> SlmExportOptions:
    defaults = {
        "checkpoint": str(SLM_DIR), "verifier": None, "out": out, "window": 96, "rows": 16, "prefill_rows": 32,
        "default_prompts": prompts, "held_out_prompts": prompts,
    }  # fmt: skip
    return SlmExportOptions(**{**defaults, **changes})


def calibrate(prompts: Path, out: Path, keep_set: str | None = None, **changes: Any) -> Calibrated:
    return calibrate_slm(settings(prompts, out), CalibrationOptions(prompts, keep_set, **changes), lambda _: None)


@pytest.fixture(scope="module")
def calibrated(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    return calibrate(prompts, tmp_path_factory.mktemp("calibrated"))


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
def test_past_and_new_caches_are_tied_and_have_the_checkpoints_scale(
    calibrated: Calibrated, method: MethodName
) -> None:
    """Whatever the method, no range of theirs is searched: at 8 bits their scale is the checkpoint's."""
    subject, ranges = calibrated.observations.subject, calibrated.observations.ranges(RangeMethod(method))
    with safe_open(SLM_DIR / "model.safetensors", "np") as source:
        for owner in OWNERS:
            for role, letter in (("keys", "k"), ("values", "v")):
                scale = float(source.get_tensor(f"model.layers.{owner}.self_attn.{letter}_cache_scale"))
                past, new = f"past_{role}_{owner}", f"new_{role}_{owner}"
                assert subject.owners[past] == subject.owners[new]
                for name in (past, new):
                    assert subject.given[name] == pytest.approx((-128 * scale, 127 * scale))
                    assert name not in ranges.bounds
    # past, new, both together, and what is converted to 8 bits
    assert len(subject.given) == len(OWNERS) * 2 * 4


def test_logits_and_moves_share_a_range(calibrated: Calibrated) -> None:
    ranges, observations = calibrated.observations.ranges(MINMAX), calibrated.observations
    split = [name for name in ranges.bounds if ".split." in name]
    assert len(split) >= 2 * LAYERS
    for name in split:
        whole = name.split(".split.")[0]
        assert ranges.of(name) == ranges.of(whole)
        low, high = observations.own_range(whole, MINMAX)
        assert ranges.of(name)[0] <= low <= high <= ranges.of(name)[1]


def test_clips_bound_what_they_clip(calibrated: Calibrated) -> None:
    """The scale of an input is in the checkpoint; the narrowest of those that read a value bounds it."""
    subject = calibrated.observations.subject
    with safe_open(SLM_DIR / "model.safetensors", "np") as source:
        for layer in range(LAYERS):
            scale = float(source.get_tensor(f"model.layers.{layer}.mlp.gate_proj.output_activation_scale"))
            assert subject.limits[f"layers.{layer}.mlp.gate_proj"] == pytest.approx((-128 * scale, 127 * scale))
            inputs = [
                float(source.get_tensor(f"model.layers.{layer}.mlp.{part}_proj.input_activation_scale"))
                for part in ("gate", "up")
            ]
            found = subject.limits[f"layers.{layer}.pre_feedforward_layernorm"]
            assert found == pytest.approx((-128 * min(inputs), 127 * min(inputs)))


def test_shards_merge_to_one_run(prompts: Path, calibrated: Calibrated, tmp_path: Path) -> None:
    """A tree's siblings depend on the prompt's number in the file, not on its place in a shard."""
    calibrated.keep_set.save(tmp_path / "keep.json")
    parts = [
        calibrate(prompts, tmp_path, str(tmp_path / "keep.json"), shard=Shard(number, 2)).observations
        for number in (1, 2)
    ]
    merge_all(parts).save(tmp_path / "merged")
    calibrated.observations.save(tmp_path / "whole")
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_ranges_are_those_of_an_export_that_calibrates_by_itself(
    prompts: Path, calibrated: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very same file: bounds to the last bit and source, and so its hash."""
    monkeypatch.setattr(export_module, "why_unavailable", lambda: "this test compiles nothing")
    export_slm(settings(prompts, tmp_path / "by_itself"), lambda _: None)
    own = Ranges.load(tmp_path / "by_itself" / "ranges.json")
    calibrated.observations.ranges(MINMAX).save(tmp_path / "ranges.json")
    assert (tmp_path / "by_itself" / "ranges.json").read_bytes() == (tmp_path / "ranges.json").read_bytes()
    sums = [name for name in own.bounds if name.endswith(".self_attn.add#2")]
    assert len(sums) == LAYERS
    assert all(own.of(name)[0] > -90 for name in sums)

    export_slm(settings(prompts, tmp_path / "given", calibration=str(tmp_path / "ranges.json")), lambda _: None)
    boundaries = [
        [(t.name, t.scale, t.zero_point) for graph in graphs for t in (*graph.inputs, *graph.outputs)]
        for graphs in (_graphs(tmp_path / name) for name in ("by_itself", "given"))
    ]
    assert boundaries[0] == boundaries[1]


def as_responses(prompts: Path, path: Path, sha256s: Sequence[str]) -> Path:
    """The prompts as if their last four tokens were answers of these verifiers, one a prompt."""
    tokenizer, made = AutoTokenizer.from_pretrained(SLM_DIR), []
    for prompt, sha256 in zip(read_prompts(prompts), sha256s, strict=True):
        ids = encode_prompt(tokenizer, prompt)
        made.append(Response(prompt.id, None, prompt.turns, tuple(ids[:-4]), tuple(ids[-4:]), "", sha256))
    write_responses(path, made, {})
    return path


def test_responses_are_read_as_they_are(prompts: Path, calibrated: Calibrated, tmp_path: Path) -> None:
    """Without a verifier; prompts cut in two are the texts that prompts without answers are."""
    found = calibrate(as_responses(prompts, tmp_path / "responses.jsonl", ["a" * 64] * 2), tmp_path)
    assert found.remark is None
    assert found.observations.subject.hashes["verifier"] == "a" * 64
    assert found.keep_set.sha256 == calibrated.keep_set.sha256
    for name, tensor in found.observations.tensors.items():
        wanted = calibrated.observations.tensors[name]
        assert (tensor.bounds, tensor.count) == (wanted.bounds, wanted.count), name
        assert np.array_equal(tensor.bins, wanted.bins), name


def test_responses_of_other_verifiers_are_refused(prompts: Path, tmp_path: Path) -> None:
    mixed = as_responses(prompts, tmp_path / "mixed.jsonl", ["a" * 64, "b" * 64])
    with pytest.raises(ResponseFileError, match=r"mixed\.jsonl: .* is of the verifier b{64}"):
        calibrate(mixed, tmp_path)
    other = as_responses(prompts, tmp_path / "other.jsonl", ["a" * 64] * 2)
    named = settings(prompts, tmp_path, verifier=str(VERIFIER_DIR))
    own = CheckpointReader(VERIFIER_DIR).sha256
    with pytest.raises(ResponseFileError, match=rf"other\.jsonl: .* is of the verifier a{{64}}, not .* {own};"):
        calibrate_slm(named, CalibrationOptions(other), lambda _: None)


def test_an_export_runs_its_verifier_on_one_thread(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def answer(_: object, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        seen.append(torch.get_num_threads())
        return [[*prompt, *range(new_tokens)] for prompt in prompts]

    monkeypatch.setattr("export.slm.sources.greedy_sequences", answer)
    options = settings(prompts, tmp_path, verifier=str(VERIFIER_DIR))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        gather_texts(open_slm_sources(options), options, lambda _: None)
        assert seen == [1] * 2  # prompts to calibrate on, and held-out ones
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_ranges_from_tables_reach_every_token(calibrated: Calibrated) -> None:
    low, high = calibrated.observations.ranges(MINMAX).of("per_layer")
    seen = calibrated.observations.tensors["per_layer"].bounds
    assert low == -high
    assert low <= seen[0] <= seen[1] <= high
    assert np.isfinite(low)


def _graphs(bundle: Path) -> Any:
    return open_bundle(bundle).manifest.graphs
