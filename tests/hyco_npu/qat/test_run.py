"""The whole command on a tiny family: what it writes, resuming, early end, several processes, wrong use."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file
from transformers import Gemma4AssistantForCausalLM
from typer.testing import CliRunner

from calibration.errors import ResponseFileError
from calibration.responses import Response, write_responses
from export.checkpoint.mtp import read_mtp_checkpoint
from export.checkpoint.weight_codes import WEIGHT_CODES_FILE, read_weight_codes
from export.mtp.export import export_mtp
from export.mtp.options import MtpExportOptions
from hyco_npu.cli import app
from hyco_npu.qat.convert import checkpoint_name
from hyco_npu.qat.run import QatResult, run_qat
from quant.errors import UsageError

from .conftest import Tiny, trunk_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hyco_npu.qat.options import QatOptions

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True, scope="module")
def _validate_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hyco_npu.qat.loop.VALIDATE_EVERY", 2)
        yield


def run(options: QatOptions) -> QatResult:
    result = run_qat(options, lambda _: None)
    assert result is not None
    return result


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def finished(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[QatResult, QatOptions]:
    options = tiny.options(tmp_path_factory.mktemp("finished") / "out")
    before = digest(tiny.verifier_folder) | digest(tiny.head.folder)
    result = run(options)
    assert digest(tiny.verifier_folder) | digest(tiny.head.folder) == before
    return result, options


def test_the_result_and_the_folder(finished: tuple[QatResult, QatOptions]) -> None:
    result, options = finished
    with (options.out / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [bool(row["validation_kl"]) for row in rows] == [False, True] * 3
    assert float(rows[0]["loss"]) == pytest.approx(result.loss_first, rel=1e-5)
    assert float(rows[-1]["loss"]) == pytest.approx(result.loss_last, rel=1e-5)
    assert (options.out / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    record = json.loads((options.out / "qat.json").read_text())
    assert record["inputs"]["prompts_sha256"] == hashlib.sha256(options.prompts.read_bytes()).hexdigest()
    assert record["inputs"]["validation_sha256"] == hashlib.sha256(options.validation.read_bytes()).hexdigest()
    assert [row["weights"] for row in result.table] == [
        "bf16", "W8", "W4 round-to-nearest", "W4 clip search", "W4 QAT"
    ]  # fmt: skip
    assert record["table"] == result.table
    # the curve's last validation is of the weights in the table's last row
    assert float(rows[-1]["validation_kl"]) == pytest.approx(result.table[-1]["kl"], rel=1e-4)
    assert not options.work_dir.exists()


def test_frozen_tensors_keep_their_bytes_and_weights_their_codes(
    finished: tuple[QatResult, QatOptions], tiny: Tiny
) -> None:
    _, options = finished
    before = load_file(tiny.head.folder / "model.safetensors")
    after = load_file(options.out / "model.safetensors")
    trunk = trunk_of(tiny.head.folder)
    trained = {checkpoint_name(name) for name in trunk.weights}
    assert set(after) | {"lm_head.weight"} == set(before) | {"lm_head.weight"}
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]) is (name not in trained)
        assert tensor.dtype == before[name].dtype
    codes = read_weight_codes(options.out, {name: tuple(w.shape) for name, w in trunk.weights.items()})
    assert codes is not None
    for name, weight in codes.items():
        wanted = (after[checkpoint_name(name)] / weight.scale).round().clamp(-8, 7)
        assert torch.equal(weight.codes.float(), wanted)


def test_transformers_and_our_reader_load_the_result(finished: tuple[QatResult, QatOptions]) -> None:
    _, options = finished
    model = Gemma4AssistantForCausalLM.from_pretrained(options.out, dtype="auto")
    state = read_mtp_checkpoint(options.out).state_dict()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state[name])


def test_responses_of_another_verifier_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    responses = tmp_path / "responses.jsonl"
    write_responses(responses, [Response("a", None, ("?",), (2, 3), (4, 5, 6), "", "a" * 64)], {})
    options = replace(tiny.options(tmp_path / "out"), prompts=responses)
    with pytest.raises(ResponseFileError, match="'a' is of the verifier aaaa"):
        run(options)


def test_export_stores_the_trained_codes(
    finished: tuple[QatResult, QatOptions], tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, options = finished
    monkeypatch.setattr("export.mtp.export.why_unavailable", lambda: "this test needs no compiler")
    exporting = MtpExportOptions(
        checkpoint=str(options.out),
        verifier=str(tiny.verifier_folder),
        out=tmp_path / "bundle",
        default_prompts=tiny.prompts,
        held_out_prompts=tiny.validation,
        window=16,
        calibration="synthetic",
        keep_set="80",
    )
    export_mtp(exporting, lambda _: None)
    kept = json.loads((tmp_path / "bundle" / "keep_set.json").read_text())["token_ids"]
    model = onnx.load(tmp_path / "bundle" / "graphs" / "mtp_step.qdq.onnx")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    trained = load_file(options.out / "model.safetensors")
    compared = 0
    for name in trunk_of(tiny.head.folder).weights:
        in_graph, weight = name, trained[checkpoint_name(name)]
        if name == "lm_head.weight":
            in_graph, weight = "lm_head.weight.kept.0", weight[kept]
        codes, scale = stored[f"{in_graph}.codes"].astype(np.int8), stored[f"{in_graph}.scale"]
        wanted = np.clip(np.round(weight.numpy() / scale[:, None]), -8, 7)
        assert np.array_equal(codes.T, wanted)
        compared += 1
    assert compared == 4 * 5 + 3
    with pytest.raises(UsageError, match="trained for 4 bits"):
        export_mtp(replace(exporting, bits=8, out=tmp_path / "w8"), lambda _: None)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    finished: tuple[QatResult, QatOptions], tiny: Tiny, tmp_path: Path
) -> None:
    _, options = finished
    run(replace(options, out=tmp_path / "again", work_dir=tmp_path / "again.work"))
    for name in ("model.safetensors", WEIGHT_CODES_FILE, "curve.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (options.out / name).read_bytes()
    run(tiny.options(tmp_path / "other", seed=1))
    assert (tmp_path / "other" / "curve.csv").read_bytes() != (options.out / "curve.csv").read_bytes()


def test_resume_goes_on_bit_for_bit(finished: tuple[QatResult, QatOptions], tiny: Tiny, tmp_path: Path) -> None:
    _, whole = finished
    options = tiny.options(tmp_path / "out")

    def broken_off(text: str) -> None:
        if text.startswith("step 3/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_qat(options, broken_off)
    assert not options.out.exists()
    with pytest.raises(UsageError, match="--resume"):
        run(options)
    with pytest.raises(UsageError, match="other recipe"):
        run(tiny.options(tmp_path / "out", resume=True, learning_rate=0.02))
    lines: list[str] = []
    assert run_qat(replace(options, resume=True), lines.append) is not None
    assert [line.split(":")[0] for line in lines if line.startswith("step")] == [f"step {n}/6" for n in (3, 4, 5, 6)]
    for name in ("model.safetensors", WEIGHT_CODES_FILE, "curve.csv"):
        assert (options.out / name).read_bytes() == (whole.out / name).read_bytes()


def test_early_end_keeps_the_best_weights(tiny: Tiny, tmp_path: Path) -> None:
    result = run(tiny.options(tmp_path / "out", steps=40, learning_rate=0.9, patience=2))
    with (tmp_path / "out" / "curve.csv").open() as file:
        seen = [float(row["validation_kl"]) for row in csv.DictReader(file) if row["validation_kl"]]
    assert result.stopped_early
    assert result.steps < 40
    assert min(seen) not in seen[-2:]
    assert len(seen) == seen.index(min(seen)) + 3
    assert result.table[-1]["kl"] == pytest.approx(min(seen), rel=1e-4)


def test_two_gloo_processes_give_the_weights_of_one(tiny: Tiny, tmp_path: Path) -> None:
    options = tiny.options(tmp_path / "one", steps=3)
    run(options)
    arguments = {
        "checkpoint": options.checkpoint, "verifier": options.verifier, "prompts": options.prompts,
        "validation": options.validation, "out": tmp_path / "two", "device": "cpu", "steps": 3, "sequences": 4,
        "rows": 3, "answer-tokens": 8, "learning-rate": 0.01,
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "hyco_npu",
        "qat",
        "--json",
    ]
    command += [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.strip().splitlines()  # one process of the two reports
    assert json.loads(line)["processes"] == 2
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-5)


def test_the_command_line(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [
        "qat", "--checkpoint", str(tiny.head.folder), "--verifier", str(tiny.verifier_folder), "--prompts",
        str(tiny.prompts), "--validation", str(tiny.validation), "--out", str(out), "--device", "cpu", "--steps", "2",
        "--bits", "2", "--sequences", "2", "--rows", "3", "--answer-tokens", "6",
    ]  # fmt: skip
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found.keys() >= {"steps", "loss_first", "loss_last", "table", "out", "verdict", "recovered"}
    assert (found["steps"], found["out"], len(found["table"])) == (2, str(out), 5)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "--force" in again.output
    forced = CliRunner().invoke(app, [*arguments, "--force"])
    assert forced.exit_code == 0
    assert "W2 QAT" in forced.stdout


def test_wrong_use(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="also one of --prompts"):
        run(tiny.options(tmp_path / "a", validation=tiny.prompts))
    with pytest.raises(UsageError, match="CUDA"):
        run(tiny.options(tmp_path / "b", device="cuda"))
    with pytest.raises(UsageError, match="--bits 5"):
        tiny.options(tmp_path / "c", bits=5)
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match="not written by this command"):
        run(tiny.options(tmp_path / "d", force=True))
    result = CliRunner().invoke(app, ["qat", "--checkpoint", str(tiny.head.folder)])
    assert result.exit_code == 2
    assert "--verifier" in result.output
