"""Whole bundles: through the real compiler once, with recorded profiles for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from export.bundle import Bundle, verify_files
from export.errors import BundleError, CompileError
from export.estimate import Estimate, EstimateOptions, RoundPart, estimate_bundles
from export.estimate import estimate as estimate_module
from quant.errors import UsageError

from .builders import QNN_VERSION, ROW_BYTES, WEIGHT_BYTES, plain_manifest, recorded_compile, save_qdq, write_bundle

if TYPE_CHECKING:
    from pathlib import Path


def estimate(*bundles: Bundle, gbps: float = 60.0, scale: float = 1.0) -> Estimate:
    return estimate_bundles(bundles, EstimateOptions(gbps, scale), lambda _: None)


@pytest.mark.htp
def test_a_tiny_bundle_through_the_compiler(mtp: Bundle) -> None:
    """Compiled for real; the bundle stays as it was."""
    before = {path: path.read_bytes() for path in mtp.folder.rglob("*") if path.is_file()}
    result = estimate(mtp, gbps=2.0, scale=3.0)
    (graph,) = result.graphs
    assert (graph.name, graph.kind, graph.rows) == ("mtp_step", "mtp", 1)
    assert 0 < graph.us_low <= graph.us <= graph.us_high
    assert graph.us % 3 == 0  # the compiler gives whole microseconds
    assert (graph.weight_bytes, graph.boundary_bytes) == (WEIGHT_BYTES, ROW_BYTES)
    assert graph.floor_us == pytest.approx((WEIGHT_BYTES + ROW_BYTES) / 2e9 * 1e6)
    assert result.round.us == pytest.approx(4 * graph.us)
    assert result.round.floor_us == pytest.approx(4 * graph.floor_us)
    assert result.round.missing_kinds == ("slm",)
    assert not result.unreliable
    assert result.qnn_version.startswith("v2.")
    assert {path: path.read_bytes() for path in mtp.folder.rglob("*") if path.is_file()} == before
    assert verify_files(mtp) == []


@pytest.mark.usefixtures("recorded")
def test_both_bundles_make_a_round(mtp: Bundle, slm: Bundle) -> None:
    """The recorded pass takes 2,875 us (2,799 to 2,983), whatever the graph."""
    said: list[str] = []
    result = estimate_bundles([slm, mtp], EstimateOptions(60.0, 2.0), said.append)
    assert [graph.name for graph in result.graphs] == ["slm_prefill", "slm_draft", "mtp_step"]
    assert result.round.parts == (RoundPart("mtp", "mtp_step", 4), RoundPart("slm", "slm_draft", 1))
    assert (result.round.us_low, result.round.us, result.round.us_high) == (5 * 5598, 5 * 5750, 5 * 5966)
    crossing = 5 * WEIGHT_BYTES + (4 + 32) * ROW_BYTES
    assert result.round.floor_us == pytest.approx(crossing / 60e9 * 1e6)
    assert result.label == "estimate (proxy chip, times scaled by 2)"
    assert result.qnn_version == QNN_VERSION
    assert len(said) == 3


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(("form", "wanted"), [("int4", False), ("nbits", False), ("native", True)])
def test_the_proxy_is_compiled_as_the_bundle_was(
    mtp: Bundle, slm: Bundle, monkeypatch: pytest.MonkeyPatch, form: str, wanted: bool
) -> None:
    asked = {}

    def compile_it(qdq: Path, scratch: Path, *, two_bit: bool) -> object:
        asked[qdq.name] = two_bit
        return recorded_compile(qdq, scratch, two_bit=two_bit)

    monkeypatch.setattr(estimate_module, "compile_for_proxy", compile_it)
    assert slm.manifest.slm is not None
    stored = slm.manifest.slm.model_copy(update={"two_bit": form})
    estimate(mtp, Bundle(slm.folder, slm.manifest.model_copy(update={"slm": stored})))
    assert asked == {
        "mtp_step.qdq.onnx": False,
        "slm_draft.qdq.onnx": wanted,
        "slm_prefill.qdq.onnx": wanted,
    }


def test_one_missing_cost_makes_it_unreliable(mtp: Bundle, recorded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    def without_cost(qdq: Path, scratch: Path, *, two_bit: bool) -> object:
        made = recorded_compile(qdq, scratch, two_bit=two_bit)
        return replace(made, profile=replace(made.profile, missing_costs=1))

    assert not estimate(mtp).unreliable
    monkeypatch.setattr(estimate_module, "compile_for_proxy", without_cost)
    result = estimate(mtp)
    assert result.unreliable
    assert result.graphs[0].missing_costs == 1


@pytest.mark.usefixtures("recorded")
def test_two_bundles_of_one_kind(mtp: Bundle, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "other", "mtp", {"mtp_step": 1})
    with pytest.raises(UsageError, match="are both of kind 'mtp'"):
        estimate(mtp, other)


@pytest.mark.usefixtures("recorded")
def test_nothing_to_estimate(mtp: Bundle) -> None:
    with pytest.raises(UsageError, match="no bundle"):
        estimate()
    with pytest.raises(BundleError, match="has no graphs"):
        estimate(Bundle(mtp.folder, plain_manifest(graphs=())))


@pytest.mark.usefixtures("recorded")
def test_a_damaged_bundle(mtp: Bundle) -> None:
    save_qdq(mtp.graph_file("mtp_step", "qdq"), 2)
    with pytest.raises(BundleError, match=r"is damaged; .*\n.*graphs/mtp_step\.qdq\.onnx: "):
        estimate(mtp)


@pytest.mark.usefixtures("recorded")
def test_a_graph_without_its_qdq_file(mtp: Bundle) -> None:
    graph = mtp.graph("mtp_step").model_copy(update={"files": {"context": "graphs/mtp_step.qdq.onnx"}})
    with pytest.raises(BundleError, match=r"graph 'mtp_step' has no 'qdq' file; it has: context"):
        estimate(Bundle(mtp.folder, mtp.manifest.model_copy(update={"graphs": (graph,)})))


def test_without_the_compiler_nothing_is_read(mtp: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.estimate.proxy.why_unavailable", lambda: "no wheel here")
    with pytest.raises(CompileError, match=r"cannot estimate: .* no wheel here"):
        estimate(mtp)
