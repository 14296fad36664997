"""`hyco-npu keepset` through the command line, and maps that no command may take."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from calibration.errors import KeepSetError
from calibration.keepset import KeepSet
from calibration.responses import Response, write_responses
from export.bundle.manifest import KeepSetInfo
from hyco_npu.cli import app
from hyco_npu.demo import open_chain
from hyco_npu.family import CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, VERIFIER_DIR

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE, STOPS, SPECIALS = 2048, {1, 5}, {0, 1, 2, 3, 4, 5}


def run(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON object of a command."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


def tokens_of(path: Path) -> list[list[int]]:
    """Prompts in the chat form, by hand."""
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER_DIR)
    texts = [json.loads(line)["turns"][0] for line in path.read_text().splitlines()]
    chats = [f"<bos><|turn>user\n{text}<turn|>\n<|turn>model\n" for text in texts]
    return [tokenizer(chat, add_special_tokens=False)["input_ids"] for chat in chats]


def most_common(tokens: list[list[int]], size: int) -> set[int]:
    """The required tokens and the most frequent others, the lower id first where counts are equal."""
    counts = Counter(token for ids in tokens for token in ids)
    others = sorted(set(range(VOCAB_SIZE)) - SPECIALS, key=lambda token: (-counts[token], token))
    return SPECIALS | set(others[: size - len(SPECIALS)])


@pytest.fixture
def responses(tmp_path: Path) -> Path:
    path = tmp_path / "responses.jsonl"
    made = [("math", (700, 701, 701, 1)), (None, (2047,) * 40)]
    write_responses(
        path,
        [Response(str(n), category, ("?",), (2,), ids, "", "a" * 64) for n, (category, ids) in enumerate(made)],
        {},
    )
    return path


def test_build_keeps_the_most_frequent_and_records_coverage(tmp_path: Path, responses: Path) -> None:
    out = tmp_path / "keep.json"
    code, result = run(
        "keepset", "build", "--size", 300, "--prompts", CALIBRATION_PROMPTS, "--responses", responses,
        "--validation", HELD_OUT_PROMPTS, "--out", out,
    )  # fmt: skip
    assert code == 0, result
    kept = most_common([*tokens_of(CALIBRATION_PROMPTS), [700, 701, 701, 1], [2047] * 40], 300)
    assert set(json.loads(out.read_text())["token_ids"]) == kept
    loaded = KeepSet.load(out, VOCAB_SIZE, STOPS, expected_sha256=result["sha256"])
    assert result["sha256"] == hashlib.sha256(struct.pack("<301q", VOCAB_SIZE, *sorted(kept))).hexdigest()
    assert loaded.size == 300
    in_set = sum(token in kept for token in (700, 701, 701, 1))
    assert result["coverage"]["categories"] == {
        "math": {"tokens": 4, "kept": in_set, "share": in_set / 4},
        "uncategorised": {"tokens": 40, "kept": 40, "share": 1.0},
    }
    unseen = [token for ids in tokens_of(HELD_OUT_PROMPTS) for token in ids]
    assert result["held_out"]["total"] == {
        "tokens": len(unseen),
        "kept": sum(token in kept for token in unseen),
        "share": sum(token in kept for token in unseen) / len(unseen),
    }
    assert [entry["kind"] for entry in result["counted"]] == ["prompt tokens", "response tokens"]
    assert (tmp_path / "keep.png").read_bytes().startswith(b"\x89PNG")
    code, shown = run("keepset", "show", out)
    assert code == 0, shown
    assert shown["coverage"] == json.loads((tmp_path / "keep.coverage.json").read_text())
    assert shown["coverage"]["coverage"] == result["coverage"]
    assert shown["required"]["stop"] == {"kept": sorted(STOPS), "missing": []}
    assert shown["required"]["special"] == {"kept": sorted(SPECIALS), "missing": []}
    assert (shown["first_ids"][0], shown["last_ids"][-1]) == (0, 2047)


def test_prompts_takes_several_files_in_both_ways(tmp_path: Path) -> None:
    made = {}
    for name, arguments in {
        "list": ["--prompts", CALIBRATION_PROMPTS, HELD_OUT_PROMPTS],
        "repeated": ["--prompts", CALIBRATION_PROMPTS, "--prompts", HELD_OUT_PROMPTS],
    }.items():
        out = tmp_path / f"{name}.json"
        code, result = run("keepset", "build", "--size", 300, *arguments, "--out", out)
        assert code == 0, result
        made[name] = set(json.loads(out.read_text())["token_ids"])
    both = [*tokens_of(CALIBRATION_PROMPTS), *tokens_of(HELD_OUT_PROMPTS)]
    assert made["list"] == made["repeated"] == most_common(both, 300)


def test_without_arguments_it_is_the_family_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        code, result = run("keepset", "build", "--out", tmp_path / f"{name}.json")
        assert code == 0, result
    assert (result["size"], result["vocab_size"]) == (1536, VOCAB_SIZE)
    assert set(json.loads((tmp_path / "a.json").read_text())["token_ids"]) == most_common(
        tokens_of(CALIBRATION_PROMPTS), 1536
    )
    for suffix in (".json", ".coverage.json", ".png"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    before = (tmp_path / "a.json").read_bytes()
    code, refused = run("keepset", "build", "--size", 100, "--out", tmp_path / "a.json")
    assert code == 2
    assert "--force" in refused["error"]
    assert (tmp_path / "a.json").read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(("--size", 5), "--size 5 must lie between 6"), (("--size", 2049), "2048 tokens"), (("--out", "k.txt"), ".json")],
)
def test_wrong_use_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[object, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, result = run("keepset", "build", *wrong)
    assert code == 2
    assert message in result["error"]
    assert list(tmp_path.iterdir()) == []


def write_map(path: Path, ids: list[int], vocab_size: int = VOCAB_SIZE) -> Path:
    """A map with these ids, whatever they are, and their right hash."""
    sha256 = hashlib.sha256(struct.pack(f"<{len(ids) + 1}q", vocab_size, *ids)).hexdigest()
    path.write_text(json.dumps({"schema_version": 1, "vocab_size": vocab_size, "sha256": sha256, "token_ids": ids}))
    return path


BROKEN_MAPS = [
    ([0, 1, 2, 3, 4, 5, 9, 9], VOCAB_SIZE, "id 9 is there twice"),
    ([0, 1, 2, 3, 4, 5, 2048], VOCAB_SIZE, "id 2048 is outside the vocabulary of 2048 tokens"),
    ([0, 1, 2, 3, 4, 9], VOCAB_SIZE, "required token ids [5] are not in the keep set"),
    ([0, 1, 5, 4], VOCAB_SIZE, "ids must be sorted"),
]


@pytest.mark.parametrize(("ids", "vocab_size", "message"), [*BROKEN_MAPS, ([0, 1, 5], 2000, "is for 2000 tokens")])
def test_export_refuses_a_broken_map_and_writes_nothing(
    tmp_path: Path, ids: list[int], vocab_size: int, message: str
) -> None:
    broken = write_map(tmp_path / "broken.json", ids, vocab_size)
    code, result = run("export", "mtp", "--keep-set", broken, "--out", tmp_path / "out")
    assert code == 1
    assert message in result["error"]
    assert "broken.json" in result["error"]
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.parametrize(("ids", "vocab_size", "message"), BROKEN_MAPS)
def test_show_refuses_a_broken_map(tmp_path: Path, ids: list[int], vocab_size: int, message: str) -> None:
    code, result = run("keepset", "show", write_map(tmp_path / "broken.json", ids, vocab_size))
    assert code == 1
    assert message in result["error"]


def test_show_of_another_vocabulary_knows_no_required_tokens(tmp_path: Path) -> None:
    path = write_map(tmp_path / "keep.json", [7, 9], 262144)
    code, result = run("keepset", "show", path)
    assert code == 0
    assert result["required"] is None
    assert result["coverage"] is None
    code, result = run("keepset", "show", path, "--verifier", VERIFIER_DIR)
    assert code == 1
    assert "is for 262144 tokens, the target has 2048" in result["error"]


def test_a_bundle_refuses_the_map_of_another(tmp_path: Path) -> None:
    """Case 41: a sound map in the place of the one that the graphs were cut for."""
    own, other = (KeepSet(np.array([0, 1, 5, last], dtype=np.int64), VOCAB_SIZE) for last in (9, 10))
    other.save(tmp_path / "keep_set.json")
    recorded = KeepSetInfo(file="keep_set.json", size=4, sha256=own.sha256, vocab_size=VOCAB_SIZE)
    bundle: Any = SimpleNamespace(path=lambda name: tmp_path / name, manifest=SimpleNamespace(keep_set=recorded))
    with pytest.raises(KeepSetError, match="the bundle records the hash"):
        open_chain(bundle)


def test_byte_fallback_tokens_are_always_kept(tmp_path: Path) -> None:
    """The family's vocabulary has none: a copy whose last 256 tokens are called so."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(VERIFIER_DIR / name, tmp_path / name)
    tokenizer = json.loads((VERIFIER_DIR / "tokenizer.json").read_text())
    model = tokenizer["model"]
    names = {token_id: token for token, token_id in model["vocab"].items()}
    replaced = {names[1792 + byte]: f"<0x{byte:02X}>" for byte in range(256)}
    model["vocab"] = {replaced.get(token, token): token_id for token, token_id in model["vocab"].items()}
    model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & replaced.keys()]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    out = tmp_path / "keep.json"
    code, result = run("keepset", "build", "--verifier", tmp_path, "--size", 300, "--out", out)
    assert code == 0, result
    assert result["required"] == 262
    kept = set(json.loads(out.read_text())["token_ids"])
    assert kept >= SPECIALS | set(range(1792, 2048))
    code, shown = run("keepset", "show", out, "--verifier", tmp_path)
    assert shown["required"]["byte_fallback"] == {"kept": list(range(1792, 2048)), "missing": []}
