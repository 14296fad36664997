"""Whole texts: on the same graph outputs, the native drafter gives graphs the same codes and draws the same trees."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from .recorded import Session, Sizes, TextRecorder, open_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hyco_npu.decode.tree import DraftTree

    from .conftest import Native

    Recorded = tuple[Session, list[DraftTree], Path]

pytestmark = pytest.mark.native
SCORE_TOLERANCE = 1e-4
MTP = {"steps": 4, "width": 2, "sibling_depth": 2}
SLM = {"passes": 1, "children": 4, "beam": 6}
CONFIGS: dict[str, dict[str, Any]] = {
    "one-pass": {"tree": {"nodes": 16}, "mtp": MTP, "slm": SLM},
    "two-passes": {"tree": {"nodes": 14}, "mtp": MTP, "slm": {**SLM, "passes": 2}},
    "three-passes": {"tree": {"nodes": 20, "keep_chain": False}, "mtp": MTP, "slm": {**SLM, "passes": 3, "beam": 4}},
    "guesses": {"tree": {"nodes": 16}, "mtp": MTP, "slm": SLM, "guesses": {}},
    "scores": {
        "tree": {"nodes": 12, "keep_chain": False},
        "mtp": {"steps": 3, "width": 3, "sibling_depth": 3},
        "slm": {**SLM, "passes": 2},
        "guesses": {"runners_up": 2, "shortest": 1},
        "scores": {"mtp": {"temperature": 0.6, "bias": -0.2}, "slm": {"temperature": 0.8, "bias": 0.1}},
    },
}


def record(folder: Path, name: str, sizes: Sizes = Sizes(), seed: int = 0) -> tuple[Session, TextRecorder]:  # noqa: B008
    """A prompt, rounds that accept any path, rounds of little depth, and a second turn."""
    session = open_session(folder, sizes, CONFIGS[name])
    text = TextRecorder(session, seed)
    text.begin(9)
    for turn in range(14):
        tree = text.draft(9 if turn % 4 else 1 + turn // 4)
        text.commit(tree, deepest=turn % 3 == 0, bonus=turn % 5 != 4)
    text.begin(4)
    for _ in range(4):
        text.commit(text.draft(9), deepest=True)
    return session, text


def assert_same_tree(found: dict[str, Any], wanted: DraftTree) -> None:
    assert found["token_ids"] == list(wanted.token_ids)
    assert found["parents"] == list(wanted.parents)
    assert found["sources"] == list(wanted.sources)
    np.testing.assert_allclose(found["scores"], wanted.scores, atol=SCORE_TOLERANCE, rtol=0)


def replay(native: Native, session: Session, recording: Path) -> tuple[int, list[dict[str, Any]]]:
    arguments = ("--mtp", str(session.mtp), "--slm", str(session.slm), "--recording", str(recording))
    return native.run("replay", *arguments)


SIZES = {"sliding": Sizes(), "wide": replace(Sizes(), window=30, sliding_window=40, position_rule="p-1")}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Recorded]:
    """(configuration, sizes) -> a text, recorded once for all builds."""
    made: dict[tuple[str, str], Recorded] = {}

    def get(name: str, sizes: str) -> Recorded:
        if (name, sizes) not in made:
            folder = tmp_path_factory.mktemp(name)
            session, text = record(folder, name, SIZES[sizes])
            made[name, sizes] = session, text.trees, text.save(folder / "recording.safetensors")
        return made[name, sizes]

    return get


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_same_trees_and_the_same_codes(
    native: Native, recorded: Callable[[str, str], Recorded], name: str, sizes: str
) -> None:
    session, trees, recording = recorded(name, sizes)
    code, lines = replay(native, session, recording)
    assert (code, lines[-1]) == (0, {"end": True, "exit": 0}), lines[-2:]
    assert len(lines) == len(trees) + 1
    for line, tree in zip(lines, trees, strict=False):
        assert_same_tree(line["tree"], tree)
        runs = {part for part in line["milliseconds"] if part.startswith(("mtp_step_", "slm_pass_"))}
        assert {"mtp_step_1", "slm_pass_1"} <= runs
        assert line["milliseconds"].keys() - runs == {"tables", "feeds", "topk", "tree", "state", "prefill"}


def altered(recording: Path, name: str, array: np.ndarray) -> None:
    """Write the recording again with another array."""
    with safe_open(recording, framework="np") as file:
        metadata = file.metadata()
    save_file({**load_file(recording), name: array}, recording, metadata)


@pytest.mark.parametrize("tensor", ["call.0.in.past_values_2", "call.3.in.mask_sliding", "call.5.in.embedding"])
def test_other_codes_than_recorded_are_an_error(native: Native, tmp_path: Path, tensor: str) -> None:
    """The check of the inputs can fail: one code that differs is named."""
    session, text = record(tmp_path, "one-pass")
    recording = text.save(tmp_path / "recording.safetensors")
    array = load_file(recording)[tensor]
    array.reshape(-1)[-1] ^= 1
    altered(recording, tensor, array)
    code, lines = replay(native, session, recording)
    assert code == 1
    assert tensor in lines[-2]["error"]
    assert lines[-1] == {"end": True, "exit": 1}


def test_other_bundles_than_recorded_are_an_error(native: Native, tmp_path: Path) -> None:
    _, text = record(tmp_path / "here", "one-pass")
    other = open_session(tmp_path / "other", replace(Sizes(), rows=10), CONFIGS["one-pass"])
    code, lines = replay(native, other, text.save(tmp_path / "recording.safetensors"))
    assert code == 1
    assert "bytes" in lines[-2]["error"]


def test_a_bundle_is_described_and_its_damage_named(native: Native, tmp_path: Path) -> None:
    session = open_session(tmp_path, Sizes(), CONFIGS["one-pass"])
    code, lines = native.run("info", "--bundle", str(session.slm))
    assert code == 0, lines
    assert lines[0]["kind"] == "slm"
    assert lines[0]["window"] == Sizes().window
    assert [(line["graph"], line["rows"]) for line in lines if "graph" in line] == [("draft", 12), ("prefill", 5)]
    assert lines[-1] == {"end": True, "exit": 0}
    table = session.slm / "table.safetensors"
    content = table.read_bytes()
    damages: list[tuple[bytes | None, str]] = [
        (content[:-1], "bytes"),
        (content[:-1] + b"\x7f", "sha256"),
        (None, "opened"),
    ]
    for damage, word in damages:
        table.unlink()
        if damage is not None:
            table.write_bytes(damage)
        code, lines = native.run("info", "--bundle", str(session.slm))
        (problem,) = [line["problem"] for line in lines if "problem" in line]
        assert code == 1
        assert problem.startswith("table.safetensors: ")
        assert word in problem
        table.write_bytes(content)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"schema_version": 2', '"schema_version": 3', "install a newer"),
        ('"file": "keep_set.json"', '"file": "../keep_set.json"', "names nothing inside"),
        ('"kind": "slm"', '"kind": "llm"', "known are mtp and slm"),
        ('"dtype": "uint16"', '"dtype": "float32"', "float32"),
        ("{", "", "not JSON"),
    ],
)
def test_a_wrong_manifest_is_refused(native: Native, tmp_path: Path, old: str, new: str, words: str) -> None:
    session = open_session(tmp_path, Sizes(), CONFIGS["one-pass"])
    manifest = session.slm / "manifest.json"
    manifest.write_text(manifest.read_text().replace(old, new))
    code, lines = native.run("info", "--bundle", str(session.slm))
    assert code == 1
    assert any(words in line.get("error", "") for line in lines)
    assert lines[-1] == {"end": True, "exit": 1}


@pytest.mark.parametrize(("there", "ok"), [("2.51.0", True), ("2.60", True), ("2.9.1", False), ("2.50.9", False)])
def test_an_older_qnn_than_the_compilers_is_a_problem(native: Native, tmp_path: Path, there: str, ok: bool) -> None:
    session = open_session(tmp_path, Sizes(), CONFIGS["one-pass"])
    manifest = session.mtp / "manifest.json"
    target = (
        '"targets": [{"target": "sm8850", "soc_model": 87, "htp_arch": "v81", "qnn_version": "2.51.0", '
        '"compiled": true, "simulated": false, "measured_on_device": "not measured"}]'
    )
    manifest.write_text(manifest.read_text().replace('"targets": []', target))
    code, lines = native.run("info", "--bundle", str(session.mtp), "--qnn-version", there)
    assert (code == 0) == ok
    assert any("sm8850 was compiled with QNN 2.51.0" in line.get("problem", "") for line in lines) != ok


@pytest.mark.parametrize(
    "arguments", [[], ["info"], ["fly", "--bundle", "x"], ["info", "--nothing"], ["replay", "--mtp"]]
)
def test_wrong_use_ends_with_two(native: Native, arguments: list[str]) -> None:
    code, lines = native.run(*arguments)
    assert code == 2
    assert lines[-1] == {"end": True, "exit": 2}
    assert "error" in lines[0]


def test_an_absent_bundle_is_named(native: Native, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    code, lines = native.run("info", "--bundle", str(tmp_path))
    assert code == 1
    assert "manifest.json" in lines[0]["error"]
