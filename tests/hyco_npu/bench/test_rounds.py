"""Recorded rounds: what is written, that drafters are led along the text, and which files and bundles are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from calibration.prompts import encode_prompt, read_prompts
from calibration.states import greedy_sequence
from calibration.verifier import load_verifier
from device_runner.staging import Pair
from export.bundle import open_bundle
from export.checkpoint.mtp import read_mtp_checkpoint
from export.sources import load_tokenizer
from hyco_npu.bench.errors import BenchError
from hyco_npu.bench.host import (
    config_for,
    drafted,
    host_trees,
    keep_trees,
    reference_for,
    replay,
    require_fit,
)
from hyco_npu.bench.recorder import RecordingOptions, RoundsRecorder, record_rounds
from hyco_npu.bench.rounds import Begin, Commit, Draft, Made, load_rounds, write_rounds
from hyco_npu.decode.config import DecodeConfig, load_config
from hyco_npu.decode.protocols import HeadUpdate
from hyco_npu.decode.tree import DraftTree
from hyco_npu.family import HELD_OUT_PROMPTS, MTP_DIR, VERIFIER_DIR
from quant.errors import UsageError
from tests.device_runner.native import real_bundles
from tests.hyco_npu.decode.scripted import ScriptedDrafter, ScriptedVerifier, chain_plan, fixed_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hyco_npu.bench.rounds import Rounds
    from hyco_npu.decode.protocols import Reply
    from tests.device_runner.native.real_bundles import Texts

CONFIG: dict[str, Any] = {"mtp": {"steps": 3}, "slm": {"children": 3}, "guesses": {}, "tree": {"nodes": 12}}
MADE = Made("verifier", "prompts.jsonl", "0" * 64, ("a",), None)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Three texts over two small bundles, and the trees that the Python drafter drew when they were made."""
    folder = tmp_path_factory.mktemp("rounds")
    session = real_bundles.make_pair(folder, CONFIG)
    return real_bundles.record_texts(session, folder / "rounds.safetensors", 6)


@pytest.fixture
def pair(texts: Texts) -> Pair:
    return Pair("A", open_bundle(texts.session.mtp), open_bundle(texts.session.slm))


def test_a_replayed_drafter_draws_the_recorded_trees(texts: Texts, pair: Pair) -> None:
    rounds = load_rounds(texts.path)
    assert (rounds.count, rounds.texts) == (18, 3)
    require_fit(rounds, pair)
    trees = host_trees(rounds, pair, "cpu")
    assert trees == tuple(map(drafted, texts.trees))
    assert host_trees(rounds, pair, "cpu", 4) == trees[:4]


def test_another_drafter_stands_at_the_same_text(texts: Texts, pair: Pair) -> None:
    """A smaller tree holds other paths, and yet every root is the recorded one."""
    rounds = load_rounds(texts.path)
    smaller = replace(
        rounds, config=rounds.config.model_copy(update={"tree": rounds.config.tree.model_copy(update={"nodes": 2})})
    )
    trees = host_trees(smaller, pair, "cpu")
    assert [tree.token_ids[0] for tree in trees] == [tree.token_ids[0] for tree in texts.trees]
    assert [len(tree.token_ids) for tree in trees] == [3] * 18


class _Fixed:
    """A drafter that draws one tree and writes down what it is told."""

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.told: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        self.told.append(("begin", tuple(token_ids), reply.emitted))

    def draft(self, max_depth: int) -> DraftTree:
        return self.tree

    def while_waiting(self) -> None:
        raise AssertionError("the native runner does not draft ahead")

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        assert tree is self.tree
        self.told.append(("commit", reply.accepted, reply.emitted))


def _update(rows: int, width: int = 4) -> HeadUpdate:
    vector, cache = np.zeros(width, np.float32), np.zeros((1, rows, 2), np.float32)
    return HeadUpdate(vector, vector, {"sliding": cache}, {"sliding": cache})


def test_the_path_is_the_drafters_own(tmp_path: Path) -> None:
    """Tree: 5 -> 7 -> 8 and 5 -> 6. What the file says was accepted is the recording drafter's affair."""
    tree = DraftTree((5, 7, 6, 8), (None, 0, 0, 1), (0.0,) * 4, ("root", "mtp", "mtp", "slm"))
    emitted = [(7, 8, 9), (6, 3), (4,), (7, 8)]
    events: list[Any] = [Begin(text=0, fresh=True, token_ids=(1, 2), emitted=(5,), update=0)]
    for number, tokens in enumerate(emitted, start=1):
        events += [Draft(max_depth=3), Commit(accepted=(9, 9, 9), emitted=tokens, update=number)]
    events.append(Begin(text=0, token_ids=(2,), emitted=(5,), update=5))
    events.append(Begin(text=1, fresh=True, token_ids=(3,), emitted=(5,), update=5))
    updates = [_update(rows) for rows in (2, 3, 2, 1, 2, 1)]
    rounds = write_rounds(tmp_path / "r.safetensors", DecodeConfig(name="x", drafter="hybrid"), events, updates, MADE)
    begun: list[_Fixed] = []

    def begin() -> _Fixed:
        begun.append(_Fixed(tree))
        return begun[-1]

    assert list(replay(rounds, begin)) == [tree] * 4
    assert begun[0].told == [
        ("begin", (1, 2), (5,)),
        ("commit", (1, 3), (7, 8, 9)),
        ("commit", (2,), (6, 3)),
        ("commit", (), (4,)),
        # the last emitted token was drafted as well: a reply accepts it (Reply.accepted)
        ("commit", (1, 3), (7, 8)),
        ("begin", (2,), (5,)),
    ]
    assert begun[1].told == [("begin", (3,), (5,))]
    assert tree.along((8, 7)) == ()


def test_a_recorded_text_is_the_verifiers_and_truth_goes_on_with_it(tmp_path: Path) -> None:
    """The prompt is 9; the text 3 1 4 1 5 9 2 6. The drafter drafts 2 tokens, the second always wrong."""
    text = (3, 1, 4, 1, 5, 9, 2, 6)
    verifier = ScriptedVerifier(fixed_text(text))
    right = {(9, *text[:end]): text[end] for end in range(8)}
    drafter = ScriptedDrafter(chain_plan(lambda so_far: right.get(so_far, 0) if len(so_far) % 2 else 77, 2))
    recorder = RoundsRecorder()
    assert recorder.text(verifier, drafter, [9], 8)
    begin, *others = recorder.events
    assert begin == Begin(text=0, fresh=True, token_ids=(9,), emitted=(3,), update=0)
    said = [
        (event.truth, event.max_depth) if isinstance(event, Draft) else event.emitted
        for event in others
        if not isinstance(event, Begin)
    ]
    # at an even length the first draft is wrong, so one token a round; else two
    assert said == [((1, 4), 6), (1,), ((4, 1), 5), (4, 1), ((5, 9), 3), (5, 9), ((2,), 1), (2, 6)]
    assert len(recorder.updates) == 5
    assert "while_waiting" not in drafter.calls


def test_a_text_of_one_token_is_no_round() -> None:
    verifier = ScriptedVerifier(fixed_text((3,)), stop_ids=[3])
    recorder = RoundsRecorder()
    assert not recorder.text(verifier, ScriptedDrafter(chain_plan(lambda text: 1, 2)), [9], 8)
    assert recorder.events == []
    assert recorder.texts == 0


def test_the_familys_rounds_are_its_greedy_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against transformers' own greedy decoding; the bundles' graphs are made up, so hardly a draft is right."""
    config = load_verifier(VERIFIER_DIR).config
    layers = {layer.kind: layer for layer in read_mtp_checkpoint(MTP_DIR).config.layers}
    kinds = [layers["sliding_attention"], layers["full_attention"]]
    sizes = replace(
        real_bundles.SIZES,
        vocabulary=config.vocab_size,
        table_rows=config.vocab_size,
        distinct_rows=config.vocab_size,
        backbone=config.hidden_size,
        head_heads=tuple(layer.num_key_value_heads for layer in kinds),
        head_dims=tuple(layer.head_dim for layer in kinds),
    )
    monkeypatch.setattr(real_bundles, "SIZES", sizes)
    made = real_bundles.make_pair(tmp_path, CONFIG)
    pair = Pair("A", open_bundle(made.mtp), open_bundle(made.slm))
    options = RecordingOptions(VERIFIER_DIR, HELD_OUT_PROMPTS, texts=2, max_new_tokens=6)
    rounds = record_rounds(tmp_path / "r.safetensors", made.config, pair, options, lambda text: None)
    require_fit(rounds, pair)
    assert rounds.made is not None
    prompts = read_prompts(HELD_OUT_PROMPTS)[:2]
    assert rounds.made.texts == tuple(prompt.id for prompt in prompts)
    tokenizer = load_tokenizer(VERIFIER_DIR)
    assert tokenizer is not None
    for number, prompt in enumerate(prompts):
        ids = encode_prompt(tokenizer, prompt)
        greedy = greedy_sequence(load_verifier(VERIFIER_DIR), ids, 6)
        mine = _events_of(rounds, number)
        assert isinstance(mine[0], Begin)
        assert list(mine[0].token_ids) == ids
        emitted = [token for event in mine if not isinstance(event, Draft) for token in event.emitted]
        assert [*ids, *emitted] == greedy[: len(ids) + len(emitted)]
        # the last token comes without a draft
        assert len(greedy) - len(ids) - len(emitted) in (0, 1)
    kept = rounds.made.trees
    assert kept is not None
    assert host_trees(replace(rounds, made=None), pair, "cpu") == kept.trees
    monkeypatch.setattr(real_bundles, "SIZES", replace(sizes, backbone=config.hidden_size + 2))
    wrong = real_bundles.make_pair(tmp_path / "wrong", CONFIG)
    with pytest.raises(BenchError, match=f"states have {config.hidden_size} values, the head of .* takes"):
        record_rounds(
            tmp_path / "n.safetensors",
            made.config,
            Pair("A", open_bundle(wrong.mtp), pair.slm),
            options,
            lambda text: None,
        )


def _events_of(rounds: Rounds, text: int) -> list[Any]:
    starts = [place for place, event in enumerate(rounds.events) if isinstance(event, Begin)]
    ends = [*starts[1:], len(rounds.events)]
    return list(rounds.events[starts[text] : ends[text]])


def test_trees_of_the_recording_are_used_for_its_own_bundles_alone(texts: Texts, pair: Pair) -> None:
    rounds = load_rounds(texts.path)
    wrong = [DraftTree.root_only(1)] * rounds.count
    own = replace(rounds, made=replace(MADE, trees=keep_trees(wrong, pair, "cpu")))
    assert host_trees(own, pair, "cpu", 2) == (drafted(wrong[0]),) * 2
    assert own.made is not None
    kept = own.made.trees
    assert kept is not None
    for changes in ({"mtp_sha256": "1" * 64}, {"version": "0.0.0"}, {"reference": "simulator"}):
        other = replace(own, made=replace(own.made, trees=replace(kept, **changes)))
        assert host_trees(other, pair, "cpu", 2) == tuple(map(drafted, texts.trees[:2]))


def test_the_bundles_decide_bits_windows_and_keep_sets(pair: Pair) -> None:
    config = config_for(load_config("hyco"), pair)
    assert config.mtp is not None
    assert config.slm is not None
    assert (config.mtp.window, config.mtp.bits, config.mtp.keep_set) == (20, 4, 210)
    assert (config.slm.window, config.slm.keep_set) == (20, 210)
    assert config.tree == load_config("hyco").tree
    for name in ("specedge", "cloud-mtp", "plain"):
        with pytest.raises(UsageError, match="the native runner drafts `hybrid`"):
            config_for(load_config(name), pair)


def test_bundles_that_were_not_compiled_are_compared_on_the_cpu(pair: Pair) -> None:
    assert [reference_for(provider, [pair]) for provider in ("cpu", "simulator", "htp")] == ["cpu"] * 3


def _rewrite(source: Path, out: Path, drop: str | None = None, **changes: Any) -> Path:
    with safe_open(source, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys() if name != drop}  # noqa: SIM118
        fields = json.loads(file.metadata()["recording"])
    save_file(arrays, out, {"recording": json.dumps({**fields, **changes})})
    return out


DRAFT = {"event": "draft", "max_depth": 2}
BEGIN = {"event": "begin", "text": 0, "fresh": True, "token_ids": [1], "emitted": [2], "update": 0}
COMMIT = {"event": "commit", "accepted": [], "emitted": [2], "update": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "rounds of schema 2, this version reads 1"),
        ({"config": {"name": "x"}}, "drafter: Field required"),
        ({"events": [DRAFT]}, "event 0, a draft, does not belong there"),
        ({"events": [{**BEGIN, "fresh": False}]}, "event 0, a begin, does not"),
        ({"events": [BEGIN, COMMIT]}, "event 1, a commit, does not"),
        ({"events": [BEGIN, DRAFT, DRAFT]}, "event 2, a draft, does not"),
        ({"events": [BEGIN, DRAFT]}, "its last one has no reply"),
        ({"events": [BEGIN]}, "it holds no round"),
        ({"events": [BEGIN, {"event": "draft"}]}, "max_depth: Field required"),
        ({"events": [{"event": "end"}]}, "record them again"),
    ],
)
def test_a_file_of_another_form_is_refused(texts: Texts, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        load_rounds(_rewrite(texts.path, tmp_path / "r.safetensors", **changes))


def test_what_is_no_file_of_rounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="there is no file of rounds"):
        load_rounds(tmp_path / "none")
    path = tmp_path / "r.safetensors"
    path.write_bytes(b"<html>not here</html>")
    with pytest.raises(BenchError, match="no safetensors file"):
        load_rounds(path)
    save_file({"x": np.zeros(1)}, path)
    with pytest.raises(BenchError, match='no "recording"'):
        load_rounds(path)
    save_file({"x": np.zeros(1)}, path, {"recording": "[1"})
    with pytest.raises(BenchError, match="not JSON"):
        load_rounds(path)
    save_file({"x": np.zeros(1)}, path, {"recording": "[1]"})
    with pytest.raises(BenchError, match="a JSON list"):
        load_rounds(path)


def test_rounds_of_another_verifier_are_refused(texts: Texts, pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"the state of update 1 is not whole"):
        require_fit(load_rounds(_rewrite(texts.path, tmp_path / "1", drop="update.1.hidden")), pair)
    with pytest.raises(
        BenchError, match=r"reply 2: its full rows are of 0 heads of 0, the bundle's head takes 1 of 16"
    ):
        require_fit(load_rounds(_rewrite(texts.path, tmp_path / "2", drop="update.2.values_full")), pair)
    events = json.loads(json.dumps([event.model_dump(mode="json") for event in load_rounds(texts.path).events]))
    events[0]["token_ids"][0] = 300
    with pytest.raises(BenchError, match="token 300 is none of the bundles' 300"):
        require_fit(load_rounds(_rewrite(texts.path, tmp_path / "3", events=events)), pair)
    events[0]["token_ids"] = [1] * 10
    with pytest.raises(BenchError, match="it has 9 sliding rows where the bundle's window shows 10"):
        require_fit(load_rounds(_rewrite(texts.path, tmp_path / "4", events=events)), pair)


def test_recordings_without_rounds_are_wrong_use() -> None:
    with pytest.raises(UsageError, match="1 texts of 2 tokens"):
        RecordingOptions(VERIFIER_DIR, HELD_OUT_PROMPTS, 1, 2)
