"""The SLM's commands on the embedded family through the command line: export, check, estimate of a whole round."""

from __future__ import annotations

import json
import shutil
from math import prod
from typing import TYPE_CHECKING, Any

import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from hyco_npu.cli import app
from hyco_npu.family import CALIBRATION_PROMPTS, SLM_DIR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.htp
VOCABULARY = 2048


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four of the calibration prompts: enough to judge a command, quick to answer."""
    file = tmp_path_factory.mktemp("prompts") / "four prompts.jsonl"
    file.write_text("".join(CALIBRATION_PROMPTS.read_text().splitlines(keepends=True)[:4]))
    return file


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, prompts: Path) -> tuple[Path, dict[str, Any]]:
    """A bundle of the family's SLM."""
    out = tmp_path_factory.mktemp("export") / "a bundle"
    code, result = run("export", "slm", "--calibration", str(prompts), "--window", "192", "--out", str(out))
    assert code == 0, result
    return out, result


def test_export_reports_what_it_made(exported: tuple[Path, dict[str, Any]]) -> None:
    out, result = exported
    (shared,) = (out / "graphs").glob("*.bin")
    assert result["graph_bytes"] == shared.stat().st_size
    # One binary for both graphs takes less than both alone: the weights are in it once.
    assert result["graph_bytes"] < result["draft_alone_bytes"] + result["prefill_alone_bytes"]
    assert result["weight_bytes"] == sum(result["weight_bytes_by_kind"].values())
    assert (result["rows"], result["prefill_rows"], result["window"]) == (32, 128, 192)
    assert result["nodes_off_npu"] == 0
    assert result["parity_max_abs_error"] < 1e-3  # of logits up to 30; the export itself asks for 1e-4 of the largest
    assert result["measured_on_device"] == "not measured"
    assert result["warnings"] == []


def test_tables_hold_the_whole_vocabulary_in_the_checkpoints_bits(exported: tuple[Path, dict[str, Any]]) -> None:
    out, result = exported
    # 2 bits of 128 values and 4 bits of 6 x 32 values a token, each with one float32 scale.
    assert result["lut_bytes"] == VOCABULARY * (128 // 4 + 4)
    assert result["per_layer_lut_bytes"] == VOCABULARY * (6 * 32 // 2 + 4)
    with (
        safe_open(SLM_DIR / "model.safetensors", "np") as source,
        safe_open(out / "tables/embedding.safetensors", "np") as table,
    ):
        stored = source.get_tensor("model.embed_tokens.embedding_quantized")
        assert (table.get_tensor("codes") == stored).all()


def test_the_boundary_has_codes_only_and_caches_in_8_bits(exported: tuple[Path, dict[str, Any]]) -> None:
    manifest = json.loads((exported[0] / "manifest.json").read_text())
    assert manifest["schema_version"] == 2
    assert manifest["kind"] == "slm"
    graphs = {graph["name"]: graph for graph in manifest["graphs"]}
    draft = graphs[manifest["slm"]["draft_graph"]]
    prefill = graphs[manifest["slm"]["prefill_graph"]]
    tensors = {tensor["name"]: tensor for tensor in (*draft["inputs"], *draft["outputs"])}
    caches = [name for name in tensors if name.startswith(("past_", "new_"))]
    assert len(caches) == 3 * 4  # three layers own a cache: past and new, keys and values
    assert {tensors[name]["dtype"] for name in caches} == {"int8"}
    assert {tensor["dtype"] for name, tensor in tensors.items() if name not in caches} == {"uint16"}
    assert tensors["past_keys_2"]["shape"] == [1, 1, 64, 192]
    # A sliding layer sees 64 tokens with itself: 64 slots, and 32 for drafted rows.
    assert tensors["past_values_0"]["shape"] == [1, 1, 96, 32]
    assert not any(tensor["name"].startswith("logits") for tensor in prefill["outputs"])
    assert prefill["files"]["binary"] == draft["files"]["binary"]
    with safe_open(SLM_DIR / "model.safetensors", "np") as source:
        for owner in range(3):
            for kind, letter in (("keys", "k"), ("values", "v")):
                scale = float(source.get_tensor(f"model.layers.{owner}.self_attn.{letter}_cache_scale"))
                for tensor in (tensors[f"past_{kind}_{owner}"], tensors[f"new_{kind}_{owner}"]):
                    assert tensor["scale"] == pytest.approx(scale, rel=1e-7)
                    assert tensor["zero_point"] == 0


def test_check_passes_and_names_its_stages(exported: tuple[Path, dict[str, Any]]) -> None:
    code, result = run("check", str(exported[0]), "--samples", "2")
    assert code == 0
    assert result["ok"] is True
    stages = {(stage["name"], stage["reference"]): stage for stage in result["stages"]}
    assert list(stages) == [
        ("fp32", "transformers_bounds"),
        ("fp32", "transformers"),
        ("qdq_cpu", "fp32"),
        ("prefill_qdq_cpu", "prefill_fp32"),
        ("htp_simulator", "qdq_cpu"),
        ("prefill_htp_simulator", "prefill_qdq_cpu"),
    ]
    assert stages["fp32", "transformers_bounds"]["max_abs_error"] < 1e-3
    assert stages["htp_simulator", "qdq_cpu"]["cosine"] >= 0.9999
    assert stages["qdq_cpu", "fp32"]["cosine"] > 0.9995
    assert stages["prefill_qdq_cpu", "prefill_fp32"]["top1_agreement"] is None


@pytest.mark.parametrize("victim", ["tables/per_layer.safetensors", "graphs/slm.weights", "check/samples.safetensors"])
def test_check_fails_on_one_changed_byte(exported: tuple[Path, dict[str, Any]], tmp_path: Path, victim: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(exported[0], copy)
    data = bytearray((copy / victim).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / victim).write_bytes(data)
    code, result = run("check", str(copy))
    assert code == 1
    assert result["ok"] is False
    assert any(victim in problem for problem in result["problems"])


def test_estimate_counts_both_graphs_and_the_draft_in_the_round(exported: tuple[Path, dict[str, Any]]) -> None:
    code, result = run("estimate", str(exported[0]), "--bandwidth-gbps", "20")
    assert code == 0, result
    manifest = json.loads((exported[0] / "manifest.json").read_text())
    assert [graph["name"] for graph in result["graphs"]] == ["slm_draft", "slm_prefill"]
    draft = result["graphs"][0]
    sizes = {"uint16": 2, "int8": 1}
    described = manifest["graphs"][0]
    boundary = sum(sizes[t["dtype"]] * prod(t["shape"]) for t in (*described["inputs"], *described["outputs"]))
    assert draft["floor_us"] == pytest.approx((described["weight_bytes"] + boundary) / 20e9 * 1e6)
    assert result["round_us"] == pytest.approx(draft["us"])
    assert result["round_lacks"] == ["mtp"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--rows", "17"], "30%"),
        (["--rows", "0"], "1..1024"),
        (["--prefill-rows", "5000"], "1..1024"),
        (["--head-bits", "3"], "2, 4 or 8"),
        (["--window", "8"], "--window 8"),
        (["--keep-set", "5000"], "--keep-set 5000"),
        (["--calibration", "absent.json"], "absent.json"),
    ],
)
def test_wrong_use_is_told(tmp_path: Path, options: list[str], reason: str) -> None:
    code, result = run("export", "slm", "--out", str(tmp_path / "out"), *options)
    assert code == 2
    assert reason in result["error"]
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.iterdir()) == []
