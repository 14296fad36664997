"""`check`: the stages of a real bundle, in order, and what it refuses."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from calibration.keepset import KeepSet
from export.bundle import Bundle, Manifest, open_bundle
from export.bundle.boundary import boundary_of
from export.errors import BundleError, CompileError
from export.hashing import sha256_file
from export.mtp import check as check_module
from export.mtp.check import check_bundle, head_config
from export.parity import CheckResult, Stage, spread

if TYPE_CHECKING:
    from pathlib import Path

    from export.engines.cpu import QuantizedGraph
    from export.engines.graph_io import Feed

    from .conftest import Exported, Family


def check(bundle: Bundle, limit: int | None = None) -> CheckResult:
    return check_bundle(bundle, limit, lambda _: None)


@pytest.fixture
def copy(exported: Exported, tmp_path: Path) -> Bundle:
    """The bundle moved elsewhere, to be damaged."""
    shutil.copytree(exported.bundle.folder, tmp_path / "a copy")
    return open_bundle(tmp_path / "a copy")


@pytest.mark.htp
def test_stages(copy: Bundle) -> None:
    """On a copy with a blank in its path: a bundle can be moved."""
    result = check(copy)
    assert result.ok
    assert result.not_run == {}
    assert [(s.name, s.reference) for s in result.stages] == [
        ("fp32", "transformers"),
        ("fake_quant", "fp32"),
        ("qdq_cpu", "fake_quant"),
        ("htp_simulator", "qdq_cpu"),
    ]
    by_name = {stage.name: stage for stage in result.stages}
    assert {stage.samples for stage in result.stages} == {8}  # one prompt, two states, four steps each
    assert by_name["fp32"].max_abs_error <= 1e-4
    assert by_name["fp32"].top1_agreement == 1.0
    assert by_name["htp_simulator"].cosine >= 0.9999
    # Rounding to 4 bits costs most, 16-bit activations little, the NPU's arithmetic least.
    assert by_name["fake_quant"].sqnr_db < by_name["qdq_cpu"].sqnr_db < by_name["fp32"].sqnr_db


@dataclass(frozen=True)
class Disagreeing:
    """A simulator whose answers are the CPU's with noise."""

    graph: QuantizedGraph
    noise: float

    def run(self, feed: Feed) -> Feed:
        rng = np.random.default_rng(0)
        return {
            name: (array + self.noise * array.std() * rng.standard_normal(array.shape)).astype(np.float32)
            for name, array in self.graph.run(feed).items()
        }


@pytest.mark.htp
@pytest.mark.parametrize(("noise", "ok"), [(0.0, True), (0.001, True), (0.05, False), (5.0, False)])
def test_a_simulator_that_disagrees(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, noise: float, ok: bool
) -> None:
    """5% of noise is a cosine of 0.9988: below 0.9999."""
    monkeypatch.setattr(check_module, "open_simulator", lambda b: Disagreeing(check_module.open_cpu(b), noise))
    assert check(exported.bundle, limit=3).ok is ok


def test_without_the_compiler_the_stage_is_named_as_not_run(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "why_unavailable", lambda: "no wheel here")
    result = check(exported.bundle, limit=2)
    assert [stage.name for stage in result.stages] == ["fp32", "fake_quant", "qdq_cpu"]
    assert result.not_run == {"htp_simulator": "no wheel here"}
    assert result.ok


@pytest.mark.parametrize("name", ["keep_set.json", "graphs/mtp_step.qdq.onnx", "tables/embedding.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_tampered_file_is_named(copy: Bundle, name: str, damage: str) -> None:
    path = copy.path(name)
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    result = check(copy)
    assert not result.ok
    assert result.stages == []
    assert result.problems[0].startswith(f"{name}: ")


def test_a_map_of_another_run_is_refused_though_its_entry_vouches_for_it(copy: Bundle) -> None:
    """Case 41: the first token that may go is left out, another one taken in; size and hash of the file are listed."""
    path, kept = copy.path("keep_set.json"), KeepSet.load(copy.path("keep_set.json"), None, ())
    free = next(n for n in range(kept.vocab_size) if n not in kept.token_ids)
    KeepSet(np.sort(np.append(kept.token_ids[:-1], free)), kept.vocab_size).save(path)
    entry = {"size_bytes": path.stat().st_size, "sha256": sha256_file(path)}
    files = tuple(
        info.model_copy(update=entry) if info.path == "keep_set.json" else info for info in copy.manifest.files
    )
    result = check(Bundle(copy.folder, copy.manifest.model_copy(update={"files": files})))
    assert not result.ok
    assert result.stages == []
    assert [problem.split(":")[0] for problem in result.problems] == ["keep_set.json"]
    assert copy.manifest.keep_set.sha256 in result.problems[0]


@pytest.mark.htp
def test_a_binary_swapped_with_its_hash(copy: Bundle) -> None:
    """Even a manifest that vouches for a cut binary gives a clean error, not a crash."""
    path = copy.graph_file("mtp_step", "binary")
    path.write_bytes(path.read_bytes()[:-1])
    files = tuple(
        info.model_copy(update={"sha256": sha256_file(path), "size_bytes": path.stat().st_size})
        if info.path == copy.graph("mtp_step").files["binary"]
        else info
        for info in copy.manifest.files
    )
    forged = Bundle(copy.folder, Manifest.model_validate({**dict(copy.manifest), "files": files}))
    with pytest.raises(CompileError, match="does not load as a graph for sm8850"):
        check(forged, limit=1)


def test_no_samples_are_no_check(exported: Exported) -> None:
    with pytest.raises(BundleError, match="no samples to check"):
        check(exported.bundle, limit=0)


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [(4, None, [0, 1, 2, 3]), (4, 9, [0, 1, 2, 3]), (8, 4, [0, 2, 4, 6]), (10, 3, [0, 3, 6]), (5, 1, [0])],
)
def test_spread(count: int, limit: int | None, expected: list[int]) -> None:
    assert spread(count, limit) == expected


def stage(name: str, cosine: float) -> Stage:
    return Stage(name, "x", 1, cosine, cosine, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("cosine", "ok"), [(1.0, True), (0.9999, True), (0.99989, False), (0.0, False), (float("nan"), False)]
)
def test_only_the_simulator_decides(cosine: float, ok: bool) -> None:
    assert CheckResult([stage("fake_quant", 0.1), stage("htp_simulator", cosine)], {}).ok is ok
    assert CheckResult([stage("fake_quant", 0.1)], {}).ok


def test_a_boundary_without_scales(exported: Exported) -> None:
    graph = exported.bundle.graph("mtp_step")
    floats = graph.inputs[0].model_copy(update={"scale": None, "zero_point": None})
    with pytest.raises(BundleError, match="tensor 'embedding' has no scale"):
        boundary_of(graph.model_copy(update={"inputs": (floats, *graph.inputs[1:])}))


def test_the_head_is_read_from_the_manifest(exported: Exported, family: Family) -> None:
    bundle = exported.bundle
    assert head_config(bundle) == family.head.config
    source = bundle.manifest.source
    config = {key: value for key, value in source.config.items() if key != "layers"}
    other = bundle.manifest.model_copy(update={"source": source.model_copy(update={"config": config})})
    with pytest.raises(BundleError, match=r"does not describe an MTP head: .*\n?layers"):
        head_config(Bundle(bundle.folder, other))
