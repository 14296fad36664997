"""The packaged configurations hold the paper's settings; what nothing reads is an error that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hyco_npu.decode.acceptance import rule_of
from hyco_npu.decode.config import DecodeConfig, config_names, load_config, parse_config
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.scores import SourceScore
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

# name: chain, depth of siblings, SLM passes, nodes, epsilon (None: exact); the design's table of configurations
PAPER: dict[str, tuple[int, int, int, int, float | None]] = {
    "cloud-mtp": (4, 0, 0, 4, None),
    "specedge": (0, 0, 4, 32, None),
    "specedge-pd": (0, 0, 4, 32, None),
    "specedge-eps": (0, 0, 4, 32, 0.005),
    "hyco": (4, 2, 1, 32, 0.005),
    "hyco-exact": (4, 2, 1, 32, None),
    "hyco-2p": (4, 2, 2, 32, 0.005),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_packaged_configuration_holds_the_papers_settings(name: str) -> None:
    config = load_config(name)
    steps, sibling_depth, passes, nodes, epsilon = PAPER[name]
    assert (config.mtp.steps if config.mtp else 0) == steps
    assert (config.mtp.sibling_depth if config.mtp else 0) == sibling_depth
    assert (config.slm.passes if config.slm else 0) == passes
    assert config.tree.nodes == nodes
    rule = config.acceptance
    assert (rule.epsilon if rule.rule == "epsilon" else None) == epsilon
    assert rule.rule == ("exact" if epsilon is None else "epsilon")
    assert rule.nodes == "all"


@pytest.mark.parametrize("name", [name for name, row in PAPER.items() if row[0] and row[2]])
def test_hyco_drafts_on_the_device_with_86k_tokens_and_a_window_of_1024(name: str) -> None:
    config = load_config(name)
    assert config.mtp is not None
    assert config.slm is not None
    # runner-up siblings: the second candidate
    assert (config.mtp.place, config.mtp.bits, config.mtp.width) == ("device", 4, 2)
    for part in (config.mtp, config.slm):
        assert part.window == 1024
        assert part.keep_set is not None
        assert round(part.keep_set, -3) == 86_000


def test_cloud_mtp_is_the_released_head_at_the_server() -> None:
    mtp = load_config("cloud-mtp").mtp
    assert mtp is not None
    assert (mtp.place, mtp.bits, mtp.keep_set, mtp.window) == ("server", 16, None, None)


def test_only_specedge_pd_drafts_ahead() -> None:
    ahead = {name for name in PAPER if (slm := load_config(name).slm) and slm.proactive_passes}
    assert ahead == {"specedge-pd"}


@pytest.mark.parametrize("name", config_names())
def test_every_packaged_configuration_loads_under_its_own_name(name: str) -> None:
    config = load_config(name)
    assert config.name == name
    assert config.summary


def test_the_papers_configurations_are_all_there() -> None:
    assert set(PAPER) <= set(config_names())


def test_a_users_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\ndrafter = "beam"\n[slm]\npasses = 3\n[scores.slm]\ntemperature = 2\nbias = -0.5\n')
    config = load_config(str(path))
    assert config.slm is not None
    assert config.slm.passes == 3
    assert config.score_of("slm") == SourceScore(2.0, -0.5)
    assert config.score_of("mtp") == SourceScore(1.0, 0.0)


def values(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "drafter": "hybrid", **changes}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"treee": {}}, "treee"),
        ({"tree": {"node": 3}}, "tree.node"),
        ({"mtp": {"keepset": 3}}, "mtp.keepset"),
        ({"slm": {"passes": 1, "pases": 2}}, "slm.pases"),
        ({"tree": {"nodes": 0}}, "tree.nodes"),
        ({"tree": {"nodes": "many"}}, "tree.nodes"),
        ({"tree": {"keep_chain": "perhaps"}}, "tree.keep_chain"),
        ({"mtp": {"steps": 0}}, "mtp.steps"),
        ({"mtp": {"bits": 5}}, "mtp.bits"),
        ({"mtp": {"place": "moon"}}, "mtp.place"),
        ({"mtp": {"sibling_depth": -1}}, "mtp.sibling_depth"),
        ({"slm": {"passes": 1.5}}, "slm.passes"),
        ({"slm": {"window": None}}, "slm.window"),
        ({"ngram": {"tokens": 0}}, "ngram.tokens"),
        ({"acceptance": {"rule": "eps"}}, "acceptance.rule"),
        ({"acceptance": {"order": "first"}}, "acceptance.order"),
        ({"acceptance": {"epsilon": 0}}, "acceptance.epsilon"),
        ({"acceptance": {"epsilon": float("nan")}}, "acceptance.epsilon"),
        ({"acceptance": {"delta": -0.3}}, "acceptance.delta"),
        ({"scores": {"mtp": {"temperature": 0}}}, "scores.mtp.temperature"),
        ({"scores": {"mtp": {"temperature": float("inf")}}}, "scores.mtp.temperature"),
        ({"scores": {"slm": {"bias": float("nan")}}}, "scores.slm.bias"),
        ({"scores": {"gpt": {}}}, "scores.gpt"),
        ({"drafter": None}, "drafter"),
    ],
)
def test_a_wrong_key_or_value_is_named(changes: dict[str, Any], named: str) -> None:
    assert isinstance(parse_config(values(), "mine"), DecodeConfig)
    with pytest.raises(UsageError, match=rf"configuration mine: {named}"):
        parse_config(values(**changes), "mine")


@pytest.mark.parametrize("missing", ["name", "drafter"])
def test_a_missing_key_is_named(missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        parse_config({key: value for key, value in values().items() if key != missing}, "mine")


def test_a_configuration_that_is_not_there_names_the_choices(tmp_path: Path) -> None:
    for name in ("hico", str(tmp_path / "absent.toml"), str(tmp_path)):
        with pytest.raises(UsageError, match=r"no configuration .* hyco, hyco-2p, hyco-bare, hyco-exact"):
            load_config(name)


@pytest.mark.parametrize("content", [b"name = ", b"[tree\n", b"name = 'x'\nname = 'y'\n", b"\xff\xfe\x00n"])
def test_a_file_that_is_not_toml_is_a_usage_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.toml is not TOML"):
        load_config(str(path))


@pytest.mark.parametrize(("rule", "epsilon"), [("epsilon", 0.005), ("typical", 0.09)])
def test_a_threshold_that_is_left_out_is_that_of_the_rules_own_paper(rule: str, epsilon: float) -> None:
    settings = parse_config({"name": "x", "drafter": "none", "acceptance": {"rule": rule}}, "x").acceptance
    chosen: Any = rule_of(settings, Sampling(1.0))
    assert chosen.epsilon == epsilon
