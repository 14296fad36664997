"""Splits: the rule against exact fractions, disjointness, and files that were changed since."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.errors import PromptFileError, SplitError
from calibration.prompts import Prompt, PromptFile, read_prompt_file, read_prompts
from calibration.splits import SPLITS, SplitRule, read_split, split_names, write_splits
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

RULE = SplitRule((0.8, 0.1, 0.1), 0)


def prompt_file(*texts: str, name: str = "a.txt") -> PromptFile:
    prompts = tuple(Prompt(f"{name}:{number}", (text,), category="c") for number, text in enumerate(texts))
    return PromptFile(name, "0" * 64, prompts)


def questions(count: int, start: int = 0) -> list[str]:
    return [f"What is {number} + 1?" for number in range(start, start + count)]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip))
def test_the_rule_is_the_hash_as_a_fraction(seed: int, text: str) -> None:
    digest = hashlib.sha256(json.dumps([seed, " ".join(text.split())]).encode()).hexdigest()
    fraction = Fraction(int(digest[:16], 16), 2**64)
    wanted = "train" if fraction < Fraction(1, 2) else "validation" if fraction < Fraction(3, 4) else "test"
    assert SplitRule((0.5, 0.25, 0.25), seed).split_of(Prompt("x", (text,))) == wanted


def test_one_prompt_is_in_one_split_whatever_its_id_spacing_or_second_turn() -> None:
    for text in questions(40):
        prompts = (Prompt("1", (text,)), Prompt("2", (f" {text}\n",), "42"), Prompt("3", (text, "Why?")))
        assert len({RULE.split_of(prompt) for prompt in prompts}) == 1


def test_adding_prompts_moves_none(tmp_path: Path) -> None:
    few, many = prompt_file(*questions(200)), prompt_file(*questions(100, 1000), name="b.txt")
    write_splits([few], tmp_path / "few", RULE)
    write_splits([many, few], tmp_path / "many", RULE)
    for name in SPLITS:
        assert set(read_split(tmp_path / "few", name).prompts) < set(read_split(tmp_path / "many", name).prompts)


def test_splits_are_disjoint_whole_and_of_about_their_shares(tmp_path: Path) -> None:
    source = prompt_file(*questions(2000))
    write_splits([source], tmp_path, RULE)
    read = {name: read_split(tmp_path, name).prompts for name in SPLITS}
    assert sorted(sum(read.values(), ()), key=repr) == sorted(source.prompts, key=repr)
    for name, share in zip(SPLITS, RULE.shares, strict=True):
        # four standard deviations of a binomial
        assert abs(len(read[name]) - 2000 * share) < 4 * (2000 * share * (1 - share)) ** 0.5


def test_the_description_has_hashes_of_sources_and_splits(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("\n".join(questions(60)))
    write_splits([read_prompt_file(path)], tmp_path / "splits", SplitRule((0.5, 0.3, 0.2), 7))
    described = json.loads((tmp_path / "splits" / "splits.json").read_text())
    assert described["seed"] == 7
    assert described["sources"] == [
        {"file": "own.txt", "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "prompts": 60}
    ]
    for name, share in (("train", 0.5), ("validation", 0.3), ("test", 0.2)):
        data = (tmp_path / "splits" / f"{name}.jsonl").read_bytes()
        assert described["splits"][name] == {
            "file": f"{name}.jsonl",
            "sha256": hashlib.sha256(data).hexdigest(),
            "share": share,
            "prompts": data.count(b"\n"),
        }


def test_same_input_same_bytes_and_another_seed_another_deal(tmp_path: Path) -> None:
    source = prompt_file(*questions(100))
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_splits([source], tmp_path / folder, SplitRule((0.8, 0.1, 0.1), seed))
    for name in ("train.jsonl", "validation.jsonl", "test.jsonl", "splits.json"):
        a, b, c = ((tmp_path / folder / name).read_bytes() for folder in "abc")
        assert a == b
        assert a != c


def test_a_split_of_share_0_is_not_there_even_if_it_was_before(tmp_path: Path) -> None:
    source = prompt_file(*questions(100))
    write_splits([source], tmp_path, RULE)
    write_splits([source], tmp_path, SplitRule((0.9, 0.1, 0.0), 0))
    assert split_names(tmp_path) == ("train", "validation")
    assert {path.name for path in tmp_path.iterdir()} == {"train.jsonl", "validation.jsonl", "splits.json"}
    with pytest.raises(SplitError, match="names no split 'test'; it has train, validation"):
        read_split(tmp_path, "test")


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.2), (1.1, -0.1, 0.0), (0.0, 0.0, 0.0), (float("nan"), 0.5, 0.5)])
def test_shares_that_cannot_be(shares: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="their sum must be 1"):
        SplitRule(shares, 0)


def test_an_empty_split_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"\(share 0\.1\) gets none of 1 prompts"):
        write_splits([prompt_file("only one")], tmp_path / "out", RULE)
    assert not (tmp_path / "out").exists()


def test_an_id_in_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match=r"'a\.txt:0' is in a\.txt and in a\.txt"):
        write_splits([prompt_file(*questions(9)), prompt_file(*questions(9, 100))], tmp_path / "out", RULE)
    assert not (tmp_path / "out").exists()


def test_a_split_that_was_changed_is_refused(tmp_path: Path) -> None:
    write_splits([prompt_file(*questions(100))], tmp_path, RULE)
    path = tmp_path / "test.jsonl"
    path.write_text(path.read_text().replace("What", "Who", 1))
    with pytest.raises(SplitError, match=r"test\.jsonl has the hash .* it was changed since"):
        read_split(tmp_path, "test")
    assert len(read_split(tmp_path, "train").prompts) > 0


@pytest.mark.parametrize("text", ["{}", '{"schema_version": 1}', '{"schema_version": 1, "splits": {"test": 3}}'])
def test_a_folder_without_a_description_of_splits(tmp_path: Path, text: str) -> None:
    (tmp_path / "splits.json").write_text(text)
    with pytest.raises(SplitError, match=r"splits\.json"):
        split_names(tmp_path)


def test_gsm8k_and_spec_bench_are_dealt_whole(shared_dir: Path, tmp_path: Path) -> None:
    paths = [shared_dir / "data" / "gsm8k" / "test.jsonl", shared_dir / "data" / "spec_bench" / "question.jsonl"]
    write_splits([read_prompt_file(path) for path in paths], tmp_path, RULE)
    dealt = {name: read_prompts(tmp_path / f"{name}.jsonl") for name in SPLITS}
    whole = [prompt for path in paths for prompt in read_prompts(path)]
    assert sorted(sum(dealt.values(), ()), key=lambda p: p.id) == sorted(whole, key=lambda p: p.id)
    texts = [{prompt.turns[0] for prompt in prompts} for prompts in dealt.values()]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
