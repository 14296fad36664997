"""What a plan runs, and what is refused before anything runs."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from export.sources import vocabulary_in
from hyco_npu.decode.config import load_config
from hyco_npu.family import HELD_OUT_PROMPTS, VERIFIER_DIR
from hyco_npu.sweep.plan import (
    Plan,
    check_keep_sets,
    plan_prompts,
    plan_settings,
    read_plan,
    reference_setting,
)
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def plan_of(folder: Path, text: str) -> Plan:
    file = folder / "plan.toml"
    file.write_text(text)
    return read_plan(file)


def test_configurations_times_the_grid_in_order(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'configs = ["hyco"]\n[grid]\n"slm.window" = [256, 512]\n"mtp.bits" = [4, 8, 16]\n')
    settings = plan_settings(plan, tmp_path)
    assert [(s.varied["slm.window"], s.varied["mtp.bits"]) for s in settings] == [*product([256, 512], [4, 8, 16])]
    for setting in settings:
        slm, mtp = setting.config.slm, setting.config.mtp
        assert slm is not None
        assert mtp is not None
        assert (slm.window, mtp.bits) == (setting.varied["slm.window"], setting.varied["mtp.bits"])
        restored = setting.config.model_copy(update={"slm": load_config("hyco").slm, "mtp": load_config("hyco").mtp})
        assert restored == load_config("hyco")
    assert settings[0].name == "hyco slm.window=256 mtp.bits=4"


def test_a_key_without_its_section_is_left_out_and_nothing_is_there_twice(tmp_path: Path) -> None:
    text = 'configs = ["cloud-mtp", "specedge", "plain", "cloud-mtp"]\n[grid]\n'
    text += '"mtp.bits" = [8, 16]\n"slm.passes" = [1, 2, 2]\n"scores.slm.bias" = [0.0]\n"tree.nodes" = [4]\n'
    names = [setting.name for setting in plan_settings(plan_of(tmp_path, text), tmp_path)]
    assert names == [
        "cloud-mtp mtp.bits=8 tree.nodes=4",
        "cloud-mtp mtp.bits=16 tree.nodes=4",
        "specedge slm.passes=1 scores.slm.bias=0.0 tree.nodes=4",
        "specedge slm.passes=2 scores.slm.bias=0.0 tree.nodes=4",
        "plain",
    ]


def test_scores_are_reached_three_deep_and_leave_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "x"\ndrafter = "hybrid"\n[mtp]\n[slm]\n[scores.slm]\ntemperature = 2.0\n[scores.mtp]\nbias = -1.0\n'
    )
    plan = plan_of(tmp_path, 'configs = ["mine.toml"]\n[grid]\n"scores.slm.bias" = [-0.5]\n')
    (setting,) = plan_settings(plan, tmp_path)
    scores = {source: score.model_dump() for source, score in setting.config.scores.items()}
    assert scores == {"slm": {"temperature": 2.0, "bias": -0.5}, "mtp": {"temperature": 1.0, "bias": -1.0}}
    assert setting.origin == "mine.toml"


def test_settings_that_differ_in_name_alone_are_the_same_run(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'configs = ["hyco", "hyco-exact"]\n[grid]\n"acceptance.rule" = ["exact", "epsilon"]\n')
    found = {setting.name: setting.identity for setting in plan_settings(plan, tmp_path)}
    assert found["hyco acceptance.rule=exact"] == found["hyco-exact acceptance.rule=exact"]
    assert found["hyco acceptance.rule=epsilon"] == found["hyco-exact acceptance.rule=epsilon"]
    assert len(set(found.values())) == 2


def test_the_reference_is_its_file_whatever_the_grid(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 'configs = ["hyco"]\nreference = "hyco-exact"\n[grid]\n"mtp.bits" = [8]\n')
    reference = reference_setting(plan, tmp_path)
    assert reference is not None
    assert (reference.config, dict(reference.varied)) == (load_config("hyco-exact"), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("configs = []", "configs: List should have at least 1 item"),
        ("limit = 3", "configs: Field required"),
        ('configs = ["hyco"]\nfoo = 1', "foo: Extra inputs are not permitted"),
        ('configs = ["hyco"]\nlimit = 0', "limit: Input should be greater than or equal to 1"),
        ('configs = ["hyco"]\ntop_p = 1.5', "top_p 1.5: give a number above 0 and at most 1"),
        ('configs = ["hyco"]\n[grid]\n"mtp.bits" = []', "grid.mtp.bits: List should have at least 1 item"),
        ('configs = ["hyco"]\n[grid]\nmtp.bits = [4]', 'write the grid\'s keys in quotes, as "mtp.bits" = [4, 8]'),
        ("configs = [", "is not TOML"),
    ],
)
def test_a_plan_that_is_wrong_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        plan_of(tmp_path, text)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ('"mtq.bits" = [4]\n"bits" = [4]', "mtq.bits, bits: no such key"),
        ('"name" = ["x"]', "name: no such key"),
        ('"ngram.tokens" = [4]', "ngram.tokens: none of hyco, plain has that section"),
        ('"mtp.bitz" = [4]', "hyco mtp.bitz=4: mtp.bitz: Extra inputs are not permitted"),
        ('"mtp.bits" = [4, 5]', "hyco mtp.bits=5: mtp.bits: Input should be 2, 3, 4, 8 or 16"),
        ('"mtp.bits.deep" = [4]', "mtp.bits: Input should be 2, 3, 4, 8 or 16"),
        ('"scores.foo.bias" = [0]', "scores.foo"),
    ],
)
def test_a_key_or_value_that_no_configuration_takes_is_named(grid: str, message: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f'configs = ["hyco", "plain"]\n[grid]\n{grid}\n')
    with pytest.raises(UsageError, match=re.escape(message)):
        plan_settings(plan, tmp_path)


def test_unknown_configurations_and_drafters_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no configuration .*hyko"):
        plan_settings(plan_of(tmp_path, 'configs = ["hyko"]'), tmp_path)
    with pytest.raises(UsageError, match=r"no configuration .*hyko"):
        reference_setting(plan_of(tmp_path, 'configs = ["hyco"]\nreference = "hyko"'), tmp_path)
    (tmp_path / "odd.toml").write_text('name = "odd"\ndrafter = "forest"\n')
    with pytest.raises(UsageError, match=re.escape("odd.toml: no drafter 'forest'")):
        plan_settings(plan_of(tmp_path, 'configs = ["odd.toml"]'), tmp_path)


@pytest.mark.parametrize("section", ["mtp", "slm"])
def test_a_keep_set_that_the_vocabulary_cannot_have_is_named(section: str, tmp_path: Path) -> None:
    vocabulary = vocabulary_in(VERIFIER_DIR)
    plan = plan_of(tmp_path, f'configs = ["hyco"]\n[grid]\n"{section}.keep_set" = [2048, 86016, 2049]\n')
    settings = plan_settings(plan, tmp_path)
    check_keep_sets(settings[:2], vocabulary)
    with pytest.raises(UsageError, match=f"setting hyco {section}.keep_set=2049: --keep-set 2049 must lie between"):
        check_keep_sets(settings, vocabulary)


def test_prompts_lie_beside_the_plan_and_are_limited(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("one\ntwo\nthree\n")
    plan: Any = plan_of(tmp_path, 'configs = ["hyco"]\nprompts = "mine.txt"\nlimit = 2')
    assert [p.turns[0] for p in plan_prompts(plan, tmp_path, HELD_OUT_PROMPTS).prompts] == ["one", "two"]
    plan = plan_of(tmp_path, 'configs = ["hyco"]')
    assert len(plan_prompts(plan, tmp_path, HELD_OUT_PROMPTS).prompts) == 24
