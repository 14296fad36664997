"""The commands a user types first, on the embedded family: export, check, demo, through the command line."""

from __future__ import annotations

import json
import shutil
from math import prod
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoTokenizer, Gemma4ForCausalLM
from typer.testing import CliRunner

from hyco_npu.cli import app
from hyco_npu.family import HELD_OUT_PROMPTS, VERIFIER_DIR
from tests.device_runner.conftest import adb, adb_server, connect, phone  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.adb import AdbTransport
    from tests.device_runner.phone import Phone

pytestmark = pytest.mark.htp


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A bundle of the family's head as `hyco-npu export mtp --bits 4` writes it."""
    out = tmp_path_factory.mktemp("export") / "a bundle"
    code, result = run("export", "mtp", "--bits", "4", "--out", str(out))
    assert code == 0, result
    return out, result


def test_export_reports_what_it_made(exported: tuple[Path, dict[str, Any]]) -> None:
    out, result = exported
    binary = next((out / "graphs").glob("*.bin"))
    assert result["bundle"] == str(out)
    assert result["graph_bytes"] == binary.stat().st_size
    assert result["lut_bytes"] == result["keep_set_size"] * 192
    assert result["nodes_off_npu"] == 0
    assert result["nodes_on_npu"] > 0
    assert result["qnn_version"].startswith("v2.")
    assert result["target"] == "sm8850"
    assert result["measured_on_device"] == "not measured"
    assert result["parity_max_abs_error"] < 1e-4
    assert result["peak_rss_bytes"] > 0
    assert result["compile_s"] > 0


def test_the_bundle_says_where_it_comes_from(exported: tuple[Path, dict[str, Any]]) -> None:
    out, _ = exported
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["bits"] == 4
    assert manifest["window"] == 1024
    assert manifest["position_rule"] == "p"
    assert manifest["targets"][0]["compiled"] is True
    assert manifest["targets"][0]["simulated"] is True
    assert manifest["targets"][0]["measured_on_device"] == "not measured"
    assert (out / "metadata.yaml").is_file()
    assert (out / "tokenizer" / "tokenizer.json").is_file()


def test_check_passes_and_names_its_stages(exported: tuple[Path, dict[str, Any]]) -> None:
    code, result = run("check", str(exported[0]), "--samples", "6")
    assert code == 0
    assert result["ok"] is True
    assert [stage["name"] for stage in result["stages"]] == ["fp32", "fake_quant", "qdq_cpu", "htp_simulator"]
    by_name = {stage["name"]: stage for stage in result["stages"]}
    assert by_name["fp32"]["max_abs_error"] < 1e-4
    assert by_name["htp_simulator"]["cosine"] >= 0.9999
    assert by_name["qdq_cpu"]["sqnr_db"] > 40


def test_eight_bit_keys_and_values_pass_the_check(tmp_path: Path) -> None:
    out = tmp_path / "kv8"
    code, result = run("export", "mtp", "--kv-bits", "8", "--out", str(out))
    assert code == 0, result
    assert result["kv_bits"] == 8
    inputs = json.loads((out / "manifest.json").read_text())["graphs"][0]["inputs"]
    assert {t["name"] for t in inputs if t["dtype"] == "int8"} == {
        "keys_sliding", "values_sliding", "keys_full", "values_full"
    }  # fmt: skip
    code, result = run("check", str(out), "--samples", "4")
    assert code == 0, result
    by_name = {stage["name"]: stage for stage in result["stages"]}
    assert by_name["htp_simulator"]["cosine"] >= 0.9999
    assert by_name["qdq_cpu"]["sqnr_db"] > 30


def test_estimate_of_the_chain_is_labelled_and_leaves_the_bundle_alone(
    exported: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, _ = exported
    code, result = run("estimate", str(out), "--bandwidth-gbps", "20", "--chart", str(tmp_path / "chart.png"))
    assert code == 0, result
    manifest = json.loads((out / "manifest.json").read_text())
    (graph,) = result["graphs"]
    assert graph["label"] == "estimate (proxy chip)"
    assert 0 < graph["us_low"] <= graph["us"] <= graph["us_high"]
    assert graph["missing_costs"] == 0
    tensors = manifest["graphs"][0]["inputs"] + manifest["graphs"][0]["outputs"]
    boundary = sum(2 * prod(tensor["shape"]) for tensor in tensors)  # all of them are 16-bit codes
    assert graph["floor_us"] == pytest.approx((manifest["graphs"][0]["weight_bytes"] + boundary) / 20e9 * 1e6)
    assert result["round_us"] == pytest.approx(4 * graph["us"])
    assert result["round_lacks"] == ["slm"]
    listed = {entry["path"] for entry in manifest["files"]} | {"manifest.json"}
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == listed


@pytest.mark.parametrize("victim", ["tables/embedding.safetensors", "graphs/mtp_step.qdq.onnx", "keep_set.json"])
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


def test_an_existing_bundle_is_refused_and_left_alone(exported: tuple[Path, dict[str, Any]]) -> None:
    out, _ = exported
    before = (out / "manifest.json").read_bytes()
    code, result = run("export", "mtp", "--out", str(out))
    assert code == 2
    assert "--force" in result["error"]
    assert (out / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    "wrong",
    [
        ("--bits", "5"),
        ("--kv-bits", "4"),
        ("--window", "0"),
        ("--keep-set", "2"),
        ("--calibration", "no-such-file.json"),
    ],
)
def test_wrong_use_exits_with_2_and_writes_nothing(tmp_path: Path, wrong: tuple[str, str]) -> None:
    code, result = run("export", "mtp", *wrong, "--out", str(tmp_path / "out"))
    assert code == 2
    assert wrong[0] in result["error"]
    assert list(tmp_path.iterdir()) == []


def test_groups_which_htp_refuses_cannot_be_asked_for(tmp_path: Path) -> None:
    """Case 9: weights have one scale per output channel; a group in a graph that is compiled is an error of its own."""
    result = CliRunner().invoke(app, ["export", "mtp", "--group-size", "32", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "--group-size" in result.output
    assert list(tmp_path.iterdir()) == []


def test_another_head_needs_its_verifier(tmp_path: Path) -> None:
    code, result = run("export", "mtp", "--checkpoint", str(tmp_path), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "--verifier" in result["error"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What `hyco-npu demo` says, and where it leaves the head's bundle; the SLM's lies beside."""
    out = tmp_path_factory.mktemp("demo") / "bundle"
    code, result = run("demo", "--max-new-tokens", "40", "--out", str(out))
    assert code == 0, result
    return out, result


@pytest.mark.adb
@pytest.mark.native
def test_a_text_drafted_over_adb_is_that_of_one_process(
    demo: tuple[Path, dict[str, Any]],
    phone: Phone,  # noqa: F811
    connect: Callable[[Phone], AdbTransport],  # noqa: F811
) -> None:
    out, shown = demo
    phone.set_properties(ro_product_cpu_abi="x86_64")
    bundles = ("--mtp-bundle", str(out), "--slm-bundle", str(out.with_name("bundle-slm")))
    serial = connect(phone).serial
    code, there = run("generate", "--device", serial, "--config", "hyco", "--max-new-tokens", "40", *bundles)
    assert code == 0, there
    code, here = run("generate", "--engine", "qdq", "--max-new-tokens", "40", *bundles)
    # the demo's tokens are transformers' greedy ones
    assert there["token_ids"] == here["token_ids"] == shown["tokens"]
    assert (there["rounds"], there["sources"]) == (here["rounds"], here["sources"])
    assert (there["device"], there["provider"], there["measured_on_device"]) == (serial, "cpu", "not measured")
    assert {"device.mtp_step_4", "device.slm_pass_1", "device.link"} <= there["phases"].keys()
    assert not list(phone.work_dir.rglob("hyco_runner"))


def test_options_of_the_other_way_of_drafting_are_refused() -> None:
    for arguments, words in (
        (("--device", "local", "--engine", "qdq"), "--engine is for drafting in this process"),
        (("--provider", "cpu"), "--provider belongs to --device"),
    ):
        code, result = run("generate", *arguments)
        assert code == 2
        assert words in result["error"]


def test_the_demo_drafts_and_equals_transformers_greedy_decoding(demo: tuple[Path, dict[str, Any]]) -> None:
    _, result = demo
    assert result["identical_to_greedy"] is True
    assert result["check"]["ok"] is True
    question = json.loads(HELD_OUT_PROMPTS.read_text().splitlines()[0])["turns"][0]
    assert result["tokens"] == generate(question, 40)
    rounds = result["rounds"][1:]
    assert {r["engine"] for r in rounds} == {"HTP simulator"}
    full = [len(r["accepted"]) for r in rounds if len(r["drafted"]) == 4]
    assert result["accepted_per_round"] == pytest.approx(sum(full) / len(full))
    # A head that drafted at random would have next to nothing accepted.
    assert result["accepted_per_round"] > 1.0
    assert result["slm"]["check"]["ok"] is True
    check_tree(result["tree"], result["tokens"], result["rounds"])


def check_tree(tree: dict[str, Any], tokens: list[int], rounds: list[dict[str, Any]]) -> None:
    """The shown pass is over a chain of the text, and counts against what the verifier really wrote."""
    shown = rounds[tree["round"]]
    before = sum(len(r["accepted"]) + 1 for r in rounds[: tree["round"]])
    assert tree["engine"] == "HTP simulator"
    assert tree["tokens"] == [tokens[before - 1], *shown["drafted"]]
    assert tree["truth"] == tokens[before : before + 5]
    assert tree["accepted_by_chain"] == len(shown["accepted"])
    assert tree["accepted_by_chain"] <= tree["accepted_with_branches"] <= tree["accepted_by_chain"] + 1
    assert len(tree["children"]) == 5
    for row in tree["children"]:
        probabilities = [child["probability"] for child in row]
        assert probabilities == sorted(probabilities, reverse=True)
        assert len({child["token_id"] for child in row}) == len(row) == 4
    # The SLM was trained on such text: it knows some of the verifier's next tokens.
    following = [*tree["truth"]]
    known = [token in {c["token_id"] for c in row} for token, row in zip(following, tree["children"], strict=False)]
    assert any(known)


def generate(question: str, count: int) -> list[int]:
    """transformers' own greedy text for a question in the chat format."""
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER_DIR)
    model = Gemma4ForCausalLM.from_pretrained(VERIFIER_DIR, dtype=torch.float32).eval()
    text = f"<bos><|turn>user\n{question}<turn|>\n<|turn>model\n"
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    out = model.generate(ids, do_sample=False, max_new_tokens=count)
    return list(out[0, ids.shape[1] :].tolist())
