"""`hyco-npu prompts` through the command line, on the embedded verifier."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoTokenizer, Gemma4ForCausalLM
from typer.testing import CliRunner

from hyco_npu.cli import app
from hyco_npu.family import CALIBRATION_PROMPTS, VERIFIER_DIR

if TYPE_CHECKING:
    from pathlib import Path

QUESTIONS = ["Tom has 3 apples and buys 4 more. How many has he?", "A hen lays 2 eggs.", "How many is 7 dozen eggs?"]


def run(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command."""
    result = CliRunner().invoke(app, ["prompts", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    lines = [{"question_id": number, "category": "eggs", "turns": [text]} for number, text in enumerate(QUESTIONS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_show_counts_and_measures(questions: Path) -> None:
    code, result = run("show", questions)
    assert code == 0, result
    (file,) = result["files"]
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER_DIR)
    texts = [f"<bos><|turn>user\n{text}<turn|>\n<|turn>model\n" for text in QUESTIONS]
    lengths = sorted(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    assert file["sha256"] == hashlib.sha256(questions.read_bytes()).hexdigest()
    assert (file["prompts"], file["categories"]) == (3, {"eggs": 3})
    assert file["tokens"].items() >= {
        "total": sum(lengths), "min": lengths[0], "median": lengths[1], "max": lengths[2]
    }.items()  # fmt: skip
    code, plain = run("show", questions, "--no-chat")
    assert plain["files"][0]["tokens"]["total"] == sum(len(tokenizer(text)["input_ids"]) for text in QUESTIONS)


def test_split_then_show_checks_the_hashes(tmp_path: Path) -> None:
    out = tmp_path / "splits"
    arguments = ("split", CALIBRATION_PROMPTS, "--train", 0.5, "--validation", 0.25, "--test", 0.25, "--out", out)
    code, result = run(*arguments)
    assert code == 0, result
    assert sum(entry["prompts"] for entry in result["splits"].values()) == 56
    code, shown = run("show", out)
    assert code == 0, shown
    assert {file["file"]: file["sha256"] for file in shown["files"]} == {
        entry["file"]: entry["sha256"] for entry in result["splits"].values()
    }
    code, refused = run(*arguments)
    assert code == 2
    assert "--force" in refused["error"]
    assert run(*arguments, "--seed", 1, "--force")[0] == 0
    (out / "test.jsonl").write_text('{"question": "Which?"}\n')
    code, changed = run("show", out)
    assert code == 1
    assert "test.jsonl has the hash" in changed["error"]


def test_shares_that_do_not_sum_to_one_are_wrong_use(tmp_path: Path) -> None:
    code, result = run("split", CALIBRATION_PROMPTS, "--train", 0.5, "--out", tmp_path / "out")
    assert code == 2
    assert "their sum must be 1" in result["error"]
    assert not (tmp_path / "out").exists()


def test_generate_writes_what_transformers_writes(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "responses.jsonl"
    arguments = ("generate", "--prompts", questions, "--max-new-tokens", 12, "--out", out)
    code, result = run(*arguments)
    assert code == 0, result
    model = Gemma4ForCausalLM.from_pretrained(VERIFIER_DIR, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER_DIR)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for number, (text, line) in enumerate(zip(QUESTIONS, lines, strict=True)):
        prompt = f"<bos><|turn>user\n{text}<turn|>\n<|turn>model\n"
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        wanted = model.generate(ids, do_sample=False, max_new_tokens=12)[0, ids.shape[1] :].tolist()
        assert (line["id"], line["category"], line["turns"]) == (str(number), "eggs", [text])
        assert line["prompt_token_ids"] == ids[0].tolist()
        assert line["response_token_ids"] == wanted
        assert line["response"] == tokenizer.decode(wanted, skip_special_tokens=True)
        assert line["verifier_sha256"] == result["verifier_sha256"]
    assert result["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    before = out.read_bytes()
    code, refused = run(*arguments)
    assert code == 2
    assert "--force" in refused["error"]
    assert run(*arguments, "--force", "--batch", 1)[0] == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize(("out", "message"), [("r.json", "ending in .jsonl"), ("absent/r.jsonl", "no folder")])
def test_an_impossible_out_is_refused_at_once(tmp_path: Path, out: str, message: str) -> None:
    code, result = run("generate", "--out", tmp_path / out)
    assert code == 2
    assert message in result["error"]


def test_a_verifier_that_is_none(questions: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, result = run(
        "generate", "--verifier", tmp_path / "empty", "--prompts", questions, "--out", tmp_path / "r.jsonl"
    )
    assert code in (1, 2)
    assert str(tmp_path / "empty") in result["error"]
    assert not (tmp_path / "r.jsonl").exists()
