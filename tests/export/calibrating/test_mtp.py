"""A head's calibration on a tiny family: against the export's own ranges, in shards, in processes, for an export."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from scipy.optimize import brentq

from calibration.errors import CalibrationError, ResponseFileError
from calibration.keepset import KeepSet
from calibration.observations import Observations, merge_all
from calibration.prompts import encode_prompt, read_prompts
from calibration.range_methods import RangeMethod
from calibration.ranges import Ranges
from calibration.report import write_calibration
from calibration.responses import Response, write_responses
from calibration.states import greedy_sequence
from calibration.threads import one_thread
from calibration.verifier import load_verifier
from export.calibrating.mtp import calibrate_mtp
from export.calibrating.options import CalibrationOptions, Shard
from export.checkpoint.reader import CheckpointReader
from export.mtp.export import export_mtp
from export.mtp.sources import gather_evidence, open_sources
from export.mtp.states import states_of_prompts
from quant.table import EmbeddingTable

if TYPE_CHECKING:
    from pathlib import Path

    from export.calibrating.shards import Calibrated
    from export.mtp.states import PromptStates

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


def test_ranges_are_those_of_an_export_that_calibrates_by_itself(
    calibrated: Calibrated, bundle: Path, tmp_path: Path
) -> None:
    """Every bound to the last bit; masks are in neither, nor do scores plus mask reach down to them."""
    write_calibration(calibrated.observations, tmp_path / "ranges.json", MINMAX)
    own, found = Ranges.load(bundle / "ranges.json"), Ranges.load(tmp_path / "ranges.json")
    assert dict(found.bounds) == dict(own.bounds)
    assert own.source == f"{found.source} + table"
    assert not {"mask_sliding", "mask_full"} & own.bounds.keys()
    assert own.bounds.keys() >= SUMS
    assert all(own.of(name)[0] > -90 for name in SUMS)


def test_an_export_runs_its_verifier_on_one_thread(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `calibrate` does: the last bits of its states may depend on how many there are."""
    seen = []

    def states(*arguments: Any) -> PromptStates:
        seen.append(torch.get_num_threads())
        return states_of_prompts(*arguments)

    monkeypatch.setattr("export.mtp.sources.states_of_prompts", states)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        options = family.options(tmp_path)
        gather_evidence(open_sources(options), options, lambda _: None)
        assert seen == [1, 1]  # calibration and held-out prompts
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_an_export_with_the_file_has_the_same_scales(
    family: Family, calibrated: Calibrated, bundle: Path, tmp_path: Path
) -> None:
    write_calibration(calibrated.observations, tmp_path / "ranges.json", MINMAX)
    calibrated.keep_set.save(tmp_path / "keep.json")
    files = {"calibration": str(tmp_path / "ranges.json"), "keep_set": str(tmp_path / "keep.json")}
    given = scales(export(family, tmp_path / "given", **files))
    wanted = scales(bundle)
    assert given.keys() == wanted.keys()
    assert {name for name in wanted if not np.array_equal(wanted[name], given[name])} == set()
    assert Ranges.load(tmp_path / "given" / "ranges.json").sha256 == Ranges.load(bundle / "ranges.json").sha256
    manifest = json.loads((tmp_path / "given" / "manifest.json").read_text())
    assert manifest["calibration"]["source"].startswith("prompts:")


def test_states_and_tables_are_tied(calibrated: Calibrated, bundle: Path) -> None:
    """And reach every row of the table, drafted here or not."""
    ranges, observations = calibrated.observations.ranges(MINMAX), calibrated.observations
    tied = [observations.tensors[name].bounds for name in ("embedding", "hidden", "next_hidden")]
    union = min(low for low, _ in tied), max(high for _, high in tied)
    assert all(low > union[0] or high < union[1] for low, high in tied)  # no one of them says it all
    table = EmbeddingTable.load(bundle / "tables/embedding.safetensors")
    rows = np.stack([table.lookup(int(token_id)).numpy() for token_id in table.token_ids])
    assert ranges.of("embedding")[0] <= rows.min() <= rows.max() <= ranges.of("embedding")[1]
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


def responses_to(family: Family, path: Path, sha256: str) -> Path:
    """A file of the verifier's greedy answers to the calibration prompts, as long as those of a calibration."""
    verifier, made = load_verifier(family.verifier), []
    for prompt in read_prompts(family.calibration):
        ids = encode_prompt(family.tokenizer, prompt)
        with one_thread():
            answer = greedy_sequence(verifier, ids, 48)[len(ids) :]
        made.append(Response(prompt.id, None, prompt.turns, tuple(ids), tuple(answer), "", sha256))
    write_responses(path, made, {})
    return path


def test_responses_stand_in_for_the_verifiers_answers(
    family: Family, calibrated: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("answers are there")

    file = responses_to(family, tmp_path / "responses.jsonl", CheckpointReader(family.verifier).sha256)
    monkeypatch.setattr("export.mtp.states.greedy_sequences", refuse)
    found = calibrate_mtp(family.options(tmp_path, table=False), CalibrationOptions(file, "100"), lambda _: None)
    assert found.keep_set.sha256 == calibrated.keep_set.sha256
    assert found.observations.seen == (0, 1)
    assert found.observations.subject.hashes["prompts"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert found.observations.tensors.keys() == calibrated.observations.tensors.keys()
    for name, tensor in found.observations.tensors.items():
        wanted = calibrated.observations.tensors[name]
        assert (tensor.bounds, tensor.count, tensor.zeros) == (wanted.bounds, wanted.count, wanted.zeros), name
        assert np.array_equal(tensor.bins, wanted.bins), name


def test_responses_of_another_verifier_are_refused(family: Family, tmp_path: Path) -> None:
    file = responses_to(family, tmp_path / "responses.jsonl", "b" * 64)
    own = CheckpointReader(family.verifier).sha256
    options = CalibrationOptions(file, "100")
    with pytest.raises(ResponseFileError, match=rf"responses\.jsonl: .* is of the verifier b{{64}}, not .* {own};"):
        calibrate_mtp(family.options(tmp_path, table=False), options, lambda _: None)


@pytest.mark.parametrize("kv_bits", [8, 16])
def test_keys_and_values_are_searched_at_the_bits_that_they_will_have(
    family: Family, tmp_path: Path, kv_bits: int
) -> None:
    """Where the error's slope is 0, on the raw values: sum over |x| > a of (|x| - a) = n a / (12 q^2)."""
    settings = family.options(tmp_path, table=False, kv_bits=kv_bits)
    found = calibrate_mtp(settings, CalibrationOptions(family.calibration, "100"), lambda _: None).observations
    ranges, unit = found.ranges(RangeMethod("mse")), 12 * (2 ** (kv_bits - 1) - 1) ** 2
    prompts = [encode_prompt(family.tokenizer, prompt) for prompt in read_prompts(family.calibration)]
    states = states_of_prompts(load_verifier(family.verifier), prompts, settings.window).states
    for kind in ("sliding", "full"):
        for role, arrays in (("keys", [s.keys[kind] for s in states]), ("values", [s.values[kind] for s in states])):
            sizes = np.abs(np.concatenate([array.ravel() for array in arrays])).astype(np.float64)
            wanted = brentq(lambda a, x=sizes: np.maximum(x - a, 0).sum() - len(x) * a / unit, 0, sizes.max())
            low, high = ranges.of(f"{role}_{kind}")
            assert max(-low, high) == pytest.approx(wanted, rel=1e-3), (role, kind)
            assert (wanted < 0.99 * sizes.max()) == (kv_bits == 8)
            assert found.subject.symmetric[f"{role}_{kind}"] == kv_bits
    assert ranges.source.endswith(", mse, keys and values at 8 bits" if kv_bits == 8 else ", mse")


def test_what_cannot_be_calibrated_is_told(family: Family, tmp_path: Path) -> None:
    settings = family.options(tmp_path, table=False, verifier=None)
    options = CalibrationOptions(family.calibration, "100")
    with pytest.raises(CalibrationError, match="no verifier is given"):
        calibrate_mtp(settings, options, lambda _: None)
    keep = tmp_path / "keep.json"
    KeepSet(np.arange(100), family.head.config.vocab_size).save(keep)
    with pytest.raises(CalibrationError, match="shard 3/3 has no prompt"):
        calibrate(family, tmp_path, str(keep), shard=Shard(3, 3))
