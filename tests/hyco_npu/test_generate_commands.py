"""`generate` and `chat` from outside: every configuration writes the verifier's own greedy text, and tells its cost."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from calibration.states import greedy_sequence
from calibration.verifier import load_verifier
from hyco_npu.cli import app
from hyco_npu.decode.config import config_names
from hyco_npu.family import VERIFIER_DIR

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have?"
TOKENS = 24


def run(*arguments: str, lines: str | None = None) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*arguments, "--json"], input=lines)
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def greedy() -> list[int]:
    """What transformers' own loop writes."""
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER_DIR, local_files_only=True)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return greedy_sequence(load_verifier(VERIFIER_DIR), ids, TOKENS)[len(ids) :]


@pytest.mark.parametrize("config", config_names())
def test_every_configuration_writes_the_greedy_text(config: str, greedy: list[int]) -> None:
    code, result = run("generate", "--config", config, "--prompt", PROMPT, "--max-new-tokens", str(TOKENS))
    assert code == 0, result
    assert result["token_ids"] == greedy
    assert result["config"] == config
    assert result["tokens"] == len(greedy) == sum(result["sources"].values())
    assert result["mat"] == pytest.approx((len(greedy) - 1) / result["rounds"])
    assert 0.9 < result["accounted"] <= 1.0 + 1e-9
    assert result["measured_on_device"] == "not measured"
    assert (result["rounds"] == len(greedy) - 1) == (config == "plain")


def test_the_trace_adds_up_and_the_tree_is_drawn(tmp_path: Path, greedy: list[int]) -> None:
    trace, picture = tmp_path / "rounds.jsonl", tmp_path / "trees.svg"
    arguments = ["generate", "--config", "hyco", "--prompt", PROMPT, "--max-new-tokens", str(TOKENS)]
    code, result = run(*arguments, "--trace", str(trace), "--svg", str(picture), "--show-tree")
    assert code == 0, result
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [token for line in lines for token in line["emitted"]] == greedy
    assert max(line["rows"] for line in lines) <= 33
    assert sum(line["bytes_up"] for line in lines) == result["bytes_up"]
    for phase, seconds in result["phases"].items():
        assert sum(line["phases"].get(phase, 0) for line in lines) == pytest.approx(seconds)
    assert "accepted" in picture.read_text()
    code, result = run(*arguments, "--trace", str(trace))
    assert code == 2
    assert "--force" in result["error"]


def test_sampling_is_repeatable_and_depends_on_the_seed() -> None:
    arguments = ["generate", "--config", "hyco-exact", "--prompt", PROMPT, "--max-new-tokens", "16"]
    texts = [run(*arguments, "--temperature", "1", "--seed", seed)[1]["token_ids"] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_streamed_text_is_the_text() -> None:
    plain = CliRunner().invoke(app, ["generate", "--prompt", PROMPT, "--max-new-tokens", "16", "--show-tree"])
    assert plain.exit_code == 0
    _, result = run("generate", "--prompt", PROMPT, "--max-new-tokens", "16")
    assert result["text"] in plain.stdout
    assert "round 1:" in plain.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "hycoo"], "hyco-exact"),
        (["--temperature", "-1"], "-1"),
        (["--top-k", "0"], "0"),
        (["--top-p", "1.5"], "1.5"),
        (["--max-new-tokens", "100000"], "100000"),
        (["--engine", "qdq"], "--mtp-bundle"),
        (["--prompt", "", "--no-chat"], "empty"),
    ],
)
def test_wrong_use_is_an_error_that_says_what_to_do(arguments: list[str], said: str) -> None:
    code, result = run("generate", *(["--prompt", PROMPT] if "--prompt" not in arguments else []), *arguments)
    assert code != 0
    assert said in result["error"]


def test_a_users_own_configuration_is_taken_and_a_wrong_key_named(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\ndrafter = "ngram"\n[tree]\nnodes = 6\n[ngram]\ntokens = 3\n')
    code, result = run("generate", "--config", str(mine), "--prompt", PROMPT, "--max-new-tokens", "8")
    assert (code, result.get("config")) == (0, "mine")
    mine.write_text('name = "mine"\ndrafter = "ngram"\n[tree]\nnods = 6\n')
    code, result = run("generate", "--config", str(mine), "--prompt", PROMPT)
    assert code == 2
    assert "tree.nods" in result["error"]


def test_a_chat_keeps_its_history_and_feeds_only_what_is_new() -> None:
    code, result = run("chat", "--config", "hyco", "--max-new-tokens", "200", lines=f"{PROMPT}\nAnd Ann?\n\n")
    assert code == 0, result
    first, second = result["turns"]
    assert first["text"]
    assert second["prompt"] == "And Ann?"
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER_DIR, local_files_only=True)
    messages = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "And Ann?"},
    ]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert second["prefilled"] == len(ids) - first["prefilled"] - first["tokens"]
    wanted = greedy_sequence(load_verifier(VERIFIER_DIR), ids, 200)[len(ids) :]
    assert second["text"] == tokenizer.decode(wanted, skip_special_tokens=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with the family's tokenizer: a verifier that knows of no head."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(VERIFIER_DIR / name, folder)
    return folder


def test_another_causal_model_verifies_trees_of_the_slm(llama: Path) -> None:
    texts = {}
    for config in ("plain", "specedge"):
        arguments = ["--config", config, "--prompt", PROMPT, "--max-new-tokens", "8", "--verifier", str(llama)]
        code, result = run("generate", *arguments)
        assert code == 0, result
        texts[config] = result["token_ids"]
    assert texts["specedge"] == texts["plain"]
    code, result = run("generate", "--config", "hyco", "--prompt", PROMPT, "--verifier", str(llama))
    assert code == 2
    assert "no Gemma 4" in result["error"]
