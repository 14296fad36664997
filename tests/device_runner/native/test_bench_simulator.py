"""`hyco_runner bench` on the x86 HTP simulator: compiled head and draft graph, the prefill graph on the CPU."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from export.bundle import open_bundle
from export.bundle.manifest import TargetStatus

from .real_bundles import Texts, alter, engine_arguments, make_pair, record_texts
from .test_replay import CONFIGS, assert_same_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Native

pytestmark = [pytest.mark.native, pytest.mark.htp]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Two rounds a text, drafted by Python's simulator sessions."""
    folder = tmp_path_factory.mktemp("compiled")
    pair = make_pair(folder, CONFIGS["one-pass"], compiled=True)
    return record_texts(pair, folder / "rounds.safetensors", 2, simulator=True)


@pytest.fixture
def copied(texts: Texts, tmp_path: Path) -> Texts:
    session = texts.session
    mtp, slm = (Path(shutil.copytree(path, tmp_path / path.name)) for path in (session.mtp, session.slm))
    return replace(texts, session=replace(session, mtp=mtp, slm=slm))


def bench(builds: Callable[[str], Native], texts: Texts, **options: object) -> tuple[int, list[dict[str, Any]]]:
    arguments = engine_arguments(texts.session, "simulator", **options)
    return builds("release").run("bench", *arguments, "--rounds", str(texts.path))


def test_trees_are_those_of_python_on_the_simulator(
    builds: Callable[[str], Native], texts: Texts, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.csv"
    code, lines = bench(builds, texts, perf_mode="burst", profile=profile)
    assert code == 0, lines[-2:]
    runner = lines[0]["runner"]
    stated = open_bundle(texts.session.mtp).manifest.targets[0].qnn_version
    assert (runner["provider"], runner["qnn_build"], runner["perf_mode"]) == ("simulator", stated, "burst")
    loads = {line["load"]["graph"]: (line["load"]["provider"], line["load"]["file"]) for line in lines[1:4]}
    assert loads == {
        "mtp_step": ("simulator", "graphs/mtp_step.sm8850.onnx"),
        "draft": ("simulator", "graphs/draft.sm8850.onnx"),
        "prefill": ("cpu", "graphs/prefill.onnx"),
    }
    rounds = [line["round"] for line in lines if "round" in line]
    assert len(rounds) == len(texts.trees) == 6
    for found, tree in zip(rounds, texts.trees, strict=True):
        assert_same_tree(found["tree"], tree)
    assert profile.read_text().count("EXECUTE") > 0


def wrong_chip(texts: Texts) -> tuple[dict[str, object], str]:
    return {"soc_model": 57, "htp_arch": 75}, "graph mtp_step .* does not load"


def damaged_binary(texts: Texts) -> tuple[dict[str, object], str]:
    binary = open_bundle(texts.session.slm).graph_file("draft", "simulator_binary")
    binary.write_bytes(binary.read_bytes()[:-8])
    return {}, f"{binary.name} is damaged or another's"


def not_compiled(texts: Texts) -> tuple[dict[str, object], str]:
    graphs = open_bundle(texts.session.mtp).manifest.graphs
    alone = tuple(graph.model_copy(update={"files": {"qdq": graph.files["qdq"]}}) for graph in graphs)
    alter(texts.session.mtp, graphs=alone)
    return {}, "graph mtp_step .* is not compiled; .*--provider cpu"


def newer_compiler(texts: Texts) -> tuple[dict[str, object], str]:
    target = open_bundle(texts.session.mtp).manifest.targets[0]
    alter(texts.session.mtp, targets=(target.model_copy(update={"qnn_version": "v9.1.0.300101000000"}),))
    return {}, "compiled with QNN v9.1.0.300101000000, newer than v2"


def other_chip_in_the_manifest(texts: Texts) -> tuple[dict[str, object], str]:
    """The chip comes from the target that was compiled, so a wrong one there is wrong here."""
    target = open_bundle(texts.session.mtp).manifest.targets[0]
    uncompiled = TargetStatus(target="sm8750", soc_model=87, htp_arch="v81", compiled=False, simulated=False)
    alter(texts.session.mtp, targets=(uncompiled, target.model_copy(update={"soc_model": 57, "htp_arch": "v75"})))
    return {}, "graph mtp_step .* does not load"


def no_qnn(texts: Texts) -> tuple[dict[str, object], str]:
    return {"qnn_backend": open_bundle(texts.session.mtp).folder / "keep_set.json"}, "names no QNN build"


@pytest.mark.parametrize(
    "change",
    [wrong_chip, damaged_binary, not_compiled, newer_compiler, other_chip_in_the_manifest, no_qnn],
    ids=lambda change: change.__name__,
)
def test_what_is_wrong_is_named(
    builds: Callable[[str], Native], copied: Texts, change: Callable[[Texts], tuple[dict[str, object], str]]
) -> None:
    options, words = change(copied)
    code, lines = bench(builds, copied, **options)
    assert code == 1
    assert lines[-1] == {"end": True, "exit": 1}
    assert re.search(words, lines[-2]["error"]), lines[-2]
