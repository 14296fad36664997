"""`hyco_runner bench` with real graphs: the trees are the Python drafter's over the same bundles, node for node."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import hyco_npu
from export.bundle import open_bundle

from .real_bundles import ORT, SIZES, Texts, alter, engine_arguments, make_pair, record_texts
from .test_replay import CONFIGS, assert_same_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Native

pytestmark = pytest.mark.native
FIXED_PARTS = {"tables", "feeds", "topk", "tree", "state", "prefill"}
ROUNDS = 8
"""Of each of the three texts."""


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Texts]:
    """Configuration -> bundles and texts, made once for all builds."""
    made: dict[str, Texts] = {}

    def get(name: str) -> Texts:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = record_texts(make_pair(folder, CONFIGS[name]), folder / "rounds.safetensors", ROUNDS)
        return made[name]

    return get


@pytest.fixture
def copied(texts: Callable[[str], Texts], tmp_path: Path) -> Texts:
    """Bundles and rounds of their own, to be damaged."""
    made = texts("one-pass")
    session = made.session
    mtp, slm = (Path(shutil.copytree(path, tmp_path / path.name)) for path in (session.mtp, session.slm))
    rounds = Path(shutil.copy(made.path, tmp_path / "rounds.safetensors"))
    return replace(made, session=replace(session, mtp=mtp, slm=slm), path=rounds)


def bench(native: Native, texts: Texts, *more: str, **options: object) -> tuple[int, list[dict[str, Any]]]:
    arguments = engine_arguments(texts.session, "cpu", **options)
    return native.run("bench", *arguments, "--rounds", str(texts.path), *more)


def rounds_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line["round"] for line in lines if "round" in line]


@pytest.mark.parametrize("name", CONFIGS)
def test_trees_are_those_of_python(native: Native, texts: Callable[[str], Texts], name: str) -> None:
    made = texts(name)
    code, lines = bench(native, made)
    assert (code, lines[-1]) == (0, {"end": True, "exit": 0}), lines[-2:]
    rounds = rounds_of(lines)
    assert len(rounds) == len(made.trees) == 3 * ROUNDS
    for number, (found, tree) in enumerate(zip(rounds, made.trees, strict=True)):
        assert_same_tree(found["tree"], tree)
        assert (found["number"], found["text"]) == (number, made.texts[number])
        assert found["matched"] == made.matched[number]


def test_windows_slide_and_steps_run_in_these_texts(texts: Callable[[str], Texts]) -> None:
    """What the comparison is worth: more tokens than any window has slots, paths of several nodes, scores apart."""
    made = texts("one-pass")
    for text in range(3):
        numbers = [number for number, at in enumerate(made.texts) if at == text]
        requests = [event for event, _ in made.requests if event["event"] == "commit"]
        assert sum(len(requests[number]["emitted"]) for number in numbers) > SIZES.sliding_window
    assert (
        sum(len(event["emitted"]) for event, _ in made.requests if event["event"] != "open" and "emitted" in event) > 60
    )
    assert max(matched or 0 for matched in made.matched) > 1


def test_what_the_lines_say(native: Native, texts: Callable[[str], Texts]) -> None:
    made = texts("two-passes")
    code, lines = bench(native, made, threads=2)
    assert code == 0
    assert lines[0] == {
        "runner": {
            "version": hyco_npu.__version__,
            "provider": "cpu",
            "ort_version": ort.__version__,
            "abi": "x86_64-linux",
            "qnn_build": None,
            "cpu_mask": None,
            "perf_mode": None,
            "threads": 2,
        }
    }
    loads = [line["load"] for line in lines[1:4]]
    assert [(load["graph"], load["provider"]) for load in loads] == [
        ("mtp_step", "cpu"), ("draft", "cpu"), ("prefill", "cpu")
    ]  # fmt: skip
    bundles = {"mtp_step": made.session.mtp, "draft": made.session.slm, "prefill": made.session.slm}
    for load in loads:
        assert load["file"] == open_bundle(bundles[load["graph"]]).graph(load["graph"]).files["qdq"]
        assert load["milliseconds"] > 0
        assert load["verify_ms"] > 0


def test_times_add_up_and_nothing_counts_twice(builds: Callable[[str], Native], texts: Callable[[str], Texts]) -> None:
    code, lines = bench(builds("release"), texts("two-passes"))
    assert code == 0
    rounds = rounds_of(lines)
    starts = [one["start_ns"] for one in rounds]
    assert starts == sorted(starts)
    for found in rounds:
        parts = found["parts"]
        runs = parts.keys() - FIXED_PARTS
        assert parts.keys() >= FIXED_PARTS
        steps = {name for name in runs if re.fullmatch(r"mtp_step_[1-4]", name)}
        passes = {name for name in runs if re.fullmatch(r"slm_pass_[12]", name)}
        assert steps | passes == runs
        assert {"mtp_step_1", "slm_pass_1"} <= runs
        assert all(parts[name] > 0 for name in runs | {"tables", "feeds", "topk", "tree", "state"})
        assert sum(parts.values()) <= found["total_ms"]
    # what belongs to no part is the smaller share
    assert statistics.median(sum(one["parts"].values()) / one["total_ms"] for one in rounds) > 0.6
    assert any("slm_pass_2" in found["parts"] for found in rounds)
    assert any("mtp_step_4" in found["parts"] for found in rounds)


def test_a_phase_inside_another_is_not_the_others(builds: Callable[[str], Native]) -> None:
    asleep = {"feeds": 10, "tables": 400, "nothing": 400, "mtp_step_1": 30, "mtp_step_2": 60, "slm_pass_1": 20}
    before, after = builds("release").probe("timing", **asleep)
    times = {"feeds": 20, "tables": 400, "mtp_step_1": 30, "mtp_step_2": 60, "slm_pass_1": 20}
    assert "slm_pass_1" not in before
    assert after.keys() == FIXED_PARTS | times.keys()
    for part, found in after.items():
        # never woken early, and woken late by less than what would be counted twice
        wanted = times.get(part, 0)
        assert wanted <= found < wanted + 350, part


@pytest.mark.parametrize("count", [0, 5, 3 * ROUNDS, 3 * ROUNDS + 7, 7 * ROUNDS])
def test_beyond_the_end_it_starts_again(
    builds: Callable[[str], Native], texts: Callable[[str], Texts], count: int
) -> None:
    made = texts("one-pass")
    code, lines = bench(builds("release"), made, count=count)
    assert code == 0
    rounds = rounds_of(lines)
    assert [one["number"] for one in rounds] == list(range(count))
    for number, found in enumerate(rounds):
        assert_same_tree(found["tree"], made.trees[number % len(made.trees)])
        assert found["text"] == made.texts[number % len(made.trees)]


def test_it_runs_on_the_cpus_of_the_mask(builds: Callable[[str], Native], texts: Callable[[str], Texts]) -> None:
    cpu = max(os.sched_getaffinity(0))
    mask = f"{1 << cpu:x}"
    code, lines = bench(builds("release"), texts("one-pass"), cpu_mask=mask)
    assert code == 0
    assert lines[0]["runner"]["cpu_mask"] == mask
    absent = f"{1 << 63:x}"
    code, lines = bench(builds("release"), texts("one-pass"), cpu_mask=absent)
    assert code == 1
    assert absent in lines[0]["error"]


def test_a_run_that_is_cut_off_has_no_end(builds: Callable[[str], Native], texts: Callable[[str], Texts]) -> None:
    made = texts("one-pass")
    command = [str(builds("release").runner), "bench", *engine_arguments(made.session, "cpu", count=10**6)]
    with subprocess.Popen([*command, "--rounds", str(made.path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(10)]
        process.send_signal(signal.SIGKILL)
        seen += process.stdout.readlines()
    assert "round" in json.loads(seen[9])
    assert not any('"end"' in line for line in seen)


def test_a_reader_that_goes_ends_the_run(builds: Callable[[str], Native], texts: Callable[[str], Texts]) -> None:
    """A closed pipe is an error, not a signal: the exit code is there."""
    made = texts("one-pass")
    command = [str(builds("release").runner), "bench", *engine_arguments(made.session, "cpu", count=10**6)]
    with subprocess.Popen(
        [*command, "--rounds", str(made.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert "Broken pipe" in process.stderr.read()
        assert process.wait(60) == 1


def damage_model(texts: Texts) -> str:
    model = open_bundle(texts.session.mtp).graph_file("mtp_step", "qdq")
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    return "mtp_step.onnx is damaged or another's: sha256"


def truncate_weights(texts: Texts) -> str:
    weights = open_bundle(texts.session.slm).graph_file("draft", "weights")
    weights.write_bytes(weights.read_bytes()[:-1])
    return "draft.weights is damaged or another's: .* bytes"


def lose_weights(texts: Texts) -> str:
    open_bundle(texts.session.slm).graph_file("prefill", "weights").unlink()
    return "prefill.weights cannot be opened"


def unlist_weights(texts: Texts) -> str:
    files = open_bundle(texts.session.slm).manifest.files
    alter(texts.session.slm, files=tuple(file for file in files if file.path != "graphs/draft.weights"))
    return "draft.weights is named by a graph, but its manifest does not list it"


def drop_model(texts: Texts) -> str:
    graphs = open_bundle(texts.session.slm).manifest.graphs
    alter(texts.session.slm, graphs=tuple(graph.model_copy(update={"files": {}}) for graph in graphs))
    return "graph draft .* has no QDQ model"


def exchange_bundles(texts: Texts) -> str:
    shutil.rmtree(texts.session.slm)
    shutil.copytree(texts.session.mtp, texts.session.slm)
    return "of kind mtp, not slm"


def change_rounds(texts: Texts, change: Callable[[dict[str, Any]], None]) -> None:
    with safe_open(texts.path, framework="np") as file:
        recording = json.loads(file.metadata()["recording"])
    change(recording)
    save_file(load_file(texts.path), texts.path, {"recording": json.dumps(recording)})


def drop_events(texts: Texts) -> str:
    change_rounds(texts, lambda recording: recording.update(events=recording["events"][:1]))
    return "holds no round"


def drop_drafts(texts: Texts) -> str:
    def change(recording: dict[str, Any]) -> None:
        recording["events"] = [event for event in recording["events"] if event["event"] != "draft"]

    change_rounds(texts, change)
    return "nothing was drafted"


def another_schema(texts: Texts) -> str:
    change_rounds(texts, lambda recording: recording.update(schema_version=2))
    return "not of schema 1, but of 2"


def no_rounds(texts: Texts) -> str:
    texts.path.write_bytes(b"nothing")
    return "cannot be read as a safetensors file"


def another_head(texts: Texts) -> str:
    with safe_open(texts.path, framework="np") as file:
        metadata = file.metadata()
    arrays = load_file(texts.path)
    arrays["update.0.values_full"] = arrays["update.0.values_full"][..., :-1].copy()
    save_file(arrays, texts.path, metadata)
    return "update.0.keys_full and values_full are not both"


@pytest.mark.parametrize(
    "damage",
    [
        damage_model, truncate_weights, lose_weights, unlist_weights, drop_model, exchange_bundles,
        drop_events, drop_drafts, another_schema, no_rounds, another_head,
    ],
    ids=lambda damage: damage.__name__,
)  # fmt: skip
def test_what_is_wrong_is_named(native: Native, copied: Texts, damage: Callable[[Texts], str]) -> None:
    words = damage(copied)
    code, lines = bench(native, copied)
    assert code == 1
    assert lines[-1] == {"end": True, "exit": 1}
    assert re.search(words, lines[-2]["error"]), lines[-2]


@pytest.mark.parametrize(
    ("provider", "options", "words"),
    [
        ("gpu", {}, "known are cpu, simulator and htp"),
        ("cpu", {"perf_mode": "burst"}, "provider cpu has neither"),
        ("cpu", {"profile": "x.csv"}, "provider cpu has neither"),
        ("cpu", {"threads": "many"}, "not a whole number"),
        ("cpu", {"cpu_mask": "0"}, "not a hexadecimal mask"),
        ("cpu", {"cpu_mask": "xyz"}, "not a hexadecimal mask"),
        ("cpu", {"port": 1}, "mode bench has no option --port"),
    ],
)
def test_wrong_use_ends_with_two(
    builds: Callable[[str], Native],
    texts: Callable[[str], Texts],
    provider: str,
    options: dict[str, object],
    words: str,
) -> None:
    arguments = engine_arguments(texts("one-pass").session, "cpu", **options)
    arguments[arguments.index("cpu")] = provider
    code, lines = builds("release").run("bench", *arguments, "--rounds", "x")
    assert code == 2
    assert words in lines[0]["error"]
    assert lines[-1] == {"end": True, "exit": 2}


@pytest.mark.parametrize(
    ("provider", "options", "words"),
    [
        ("simulator", [], "--qnn-provider and --qnn-backend"),
        ("htp", ["--qnn-provider", "x", "--qnn-backend", "x"], "htp is a phone's NPU"),
    ],
)
def test_qnn_needs_its_libraries_and_its_machine(
    builds: Callable[[str], Native],
    texts: Callable[[str], Texts],
    provider: str,
    options: list[str],
    words: str,
) -> None:
    session = texts("one-pass").session
    arguments = ["--mtp", str(session.mtp), "--slm", str(session.slm), "--provider", provider, "--ort", str(ORT)]
    code, lines = builds("release").run("bench", *arguments, *options, "--rounds", "x")
    assert code == 2
    assert words in lines[0]["error"]
