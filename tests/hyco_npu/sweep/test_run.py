"""Settings on the embedded family: what they come to, what is kept, what is run again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from calibration.prompts import encode_prompt, read_prompts
from hyco_npu.cli import app
from hyco_npu.decode.config import load_config
from hyco_npu.decode.models import ModelPaths, Models
from hyco_npu.decode.session import GenerationOptions, Session
from hyco_npu.decode.trace import summarize
from hyco_npu.family import HELD_OUT_PROMPTS, VERIFIER_DIR
from hyco_npu.family.evaluate import greedy_text
from hyco_npu.family.stages import load_verifier
from hyco_npu.sweep import run
from hyco_npu.sweep.errors import SweepError

if TYPE_CHECKING:
    from pathlib import Path

    from hyco_npu.decode.config import DecodeConfig

TOKENS = 12
COMMON = f"limit = 2\nmax_new_tokens = {TOKENS}\n"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Drafters of the settings that models ran for, in order."""
    names: list[str] = []
    real = run.measure

    def counting(models: Models, config: DecodeConfig, workload: run.Workload) -> run.Measured:
        names.append(config.name)
        return real(models, config, workload)

    monkeypatch.setattr(run, "measure", counting)
    return names


def sweep(folder: Path, plan: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a sweep in `folder`."""
    file = folder / "plan.toml"
    file.write_text(plan)
    arguments = ["sweep", str(file), "--out", str(folder / "out"), *options, "--json"]
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


def prompt_ids(models: Models) -> list[list[int]]:
    return [encode_prompt(models.tokenizer, prompt) for prompt in read_prompts(HELD_OUT_PROMPTS)[:2]]


def test_rows_are_what_decoding_each_prompt_gives(tmp_path: Path) -> None:
    code, result = sweep(tmp_path, 'configs = ["hyco", "plain"]\n' + COMMON)
    assert code == 0, result
    models = Models(ModelPaths())
    prompts = prompt_ids(models)
    hyco, plain = result["rows"]
    options = GenerationOptions(TOKENS)
    config = load_config("hyco")
    texts = [[*Session(models, config, options).generate(ids)] for ids in prompts]
    assert (hyco["prompts"], hyco["tokens"]) == (2, sum(summarize(text, config).tokens for text in texts))
    assert hyco["rounds"] == sum(summarize(text, config).rounds for text in texts)
    assert hyco["mat"] == pytest.approx(sum(summarize(t, config).tokens - 1 for t in texts) / hyco["rounds"])
    assert hyco["bytes_up"] == 4 * sum(one.tree.nodes for text in texts for one in text) / hyco["rounds"]
    updates = [one.reply.update for text in texts for one in text[1:]]
    down = 3 * (hyco["tokens"] - 2) + sum(update.wire_bytes for update in updates if update is not None)
    assert hyco["bytes_down"] == pytest.approx(down / hyco["rounds"])
    # without drafts: transformers' own greedy text, a token a round
    verifier = load_verifier(VERIFIER_DIR)
    lengths = [len(greedy_text(verifier, ids, TOKENS)) - len(ids) for ids in prompts]
    assert (plain["tokens"], plain["rounds"], plain["mat"]) == (sum(lengths), sum(lengths) - 2, 1.0)
    assert (plain["floor_ms"], plain["graph_bytes"]) == (0, 0)
    assert hyco["floor_ms"] > 0


def test_finished_settings_are_kept_and_a_changed_plan_runs_what_is_new(tmp_path: Path, measured: list[str]) -> None:
    plan = 'configs = ["ngram", "cloud-mtp"]\nreference = "plain"\n' + COMMON
    assert sweep(tmp_path, plan)[0] == 0
    assert measured == ["ngram", "cloud-mtp", "plain"]
    assert len([*(tmp_path / "out.work").iterdir()]) == 3
    code, refused = sweep(tmp_path, plan)
    assert (code, "--force" in refused["error"]) == (2, True)
    before = json.loads((tmp_path / "out" / "sweep.json").read_text())

    measured.clear()
    assert sweep(tmp_path, plan, "--force")[0] == 0
    assert measured == []
    assert json.loads((tmp_path / "out" / "sweep.json").read_text()) == before

    next(file for file in (tmp_path / "out.work").iterdir() if "cloud-mtp" in file.read_text()).unlink()
    assert sweep(tmp_path, plan, "--force")[0] == 0
    assert measured == ["cloud-mtp"]

    measured.clear()
    code, result = sweep(tmp_path, plan + '[grid]\n"ngram.tokens" = [4, 2]\n', "--force")
    assert code == 0
    # 4 is what the configuration had
    assert measured == ["ngram"]
    assert [(row["config"], row["ngram.tokens"]) for row in result["rows"]] == [
        ("ngram", 4),
        ("ngram", 2),
        ("cloud-mtp", None),
        ("plain", None),
    ]

    measured.clear()
    for changed in (plan.replace("limit = 2", "limit = 1"), plan.replace("12", "11"), plan + "temperature = 0.7\n"):
        assert sweep(tmp_path, changed, "--force")[0] == 0
    assert len(measured) == 9


def test_a_file_that_holds_no_result_is_named(tmp_path: Path) -> None:
    plan = 'configs = ["plain"]\nlimit = 1\nmax_new_tokens = 2\n'
    assert sweep(tmp_path, plan)[0] == 0
    (file,) = (tmp_path / "out.work").iterdir()
    file.write_text('{"schema_version": 1}')
    code, result = sweep(tmp_path, plan, "--force")
    assert (code, f"{file.name} holds no result" in result["error"]) == (1, True)


def test_equal_settings_under_two_names_run_once(tmp_path: Path, measured: list[str]) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\nsummary = "the same"\ndrafter = "none"\n')
    code, result = sweep(tmp_path, 'configs = ["plain", "mine.toml"]\nlimit = 1\nmax_new_tokens = 4\n')
    assert code == 0
    assert len(measured) == 1
    first, second = result["rows"]
    assert {**first, "config": "mine.toml"} == second


def test_a_reference_among_the_settings_has_no_row_of_its_own(tmp_path: Path) -> None:
    plan = 'configs = ["ngram"]\nreference = "ngram"\nlimit = 1\nmax_new_tokens = 8\n[grid]\n"tree.nodes" = [1, 4]\n'
    code, result = sweep(tmp_path, plan)
    assert code == 0
    one, four = result["rows"]
    assert (four["tree.nodes"], four["ratio"]) == (4, 1.0)
    assert one["ratio"] == pytest.approx(one["mat"] / four["mat"])


def test_nothing_runs_where_a_key_is_wrong(tmp_path: Path, measured: list[str]) -> None:
    code, result = sweep(tmp_path, 'configs = ["plain", "hyco"]\n[grid]\n"mtp.stepz" = [4]\n')
    assert (code, "mtp.stepz" in result["error"]) == (2, True)
    assert measured == []
    assert not (tmp_path / "out.work").exists()


def test_a_setting_that_fails_is_named_and_those_before_are_kept(tmp_path: Path, measured: list[str]) -> None:
    plan = 'configs = ["plain", "hyco"]\nlimit = 1\nmax_new_tokens = 4\n[grid]\n"mtp.steps" = [40]\n'
    code, result = sweep(tmp_path, plan)
    assert code == 1
    assert result["error"].startswith("setting hyco mtp.steps=40: ")
    assert "rows, the SLM's draft graph runs 33" in result["error"]
    assert len([*(tmp_path / "out.work").iterdir()]) == 1
    assert not (tmp_path / "out").exists()


def test_errors_of_any_kind_name_the_setting() -> None:
    from concurrent.futures.process import BrokenProcessPool

    from hyco_npu.sweep.plan import Setting

    setting = Setting("hyco", {"mtp.bits": 4}, load_config("hyco"))
    for error, cause in (
        (SweepError("no"), "setting hyco mtp.bits=4: no"),
        (RuntimeError("shape"), "setting hyco mtp.bits=4: RuntimeError: shape"),
        (BrokenProcessPool("gone"), "setting hyco mtp.bits=4 or one beside it: the process was killed"),
    ):
        assert str(run._failure(setting, error)).startswith(cause)
