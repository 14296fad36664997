"""Coverage against sets and counters, the curve against keep sets of every size."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.coverage import (
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    Share,
    Text,
    count_keep_set,
    coverage_path,
    curve_sizes,
    load_coverage,
    measure_coverage,
    prompt_text,
    response_text,
    save_coverage,
    save_curve,
)
from calibration.errors import KeepSetError
from calibration.keepset import KeepSet, count_tokens, most_frequent
from calibration.responses import Response, write_responses
from tests.calibration.test_prompts import word_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 12
SEQUENCES = st.lists(
    st.tuples(st.sampled_from([None, "math", "rag"]), st.lists(st.integers(0, VOCAB - 1), max_size=9).map(tuple)),
    min_size=1,
    max_size=6,
)


def text(kind: str, *sequences: tuple[str | None, tuple[int, ...]], file: str = "f.jsonl") -> Text:
    return Text(file, "0" * 64, kind, sequences)


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, st.sets(st.integers(0, VOCAB - 1), min_size=1))
def test_coverage_is_counted_by_hand(sequences: list[tuple[str | None, tuple[int, ...]]], kept: set[int]) -> None:
    keep_set = KeepSet(np.array(sorted(kept), dtype=np.int64), VOCAB)
    found = measure_coverage(keep_set, [text(RESPONSE_TOKENS, *sequences)])
    tokens, inside = Counter[str](), Counter[str]()
    for category, ids in sequences:
        tokens[category or "uncategorised"] += len(ids)
        inside[category or "uncategorised"] += sum(token in kept for token in ids)
    assert list(found.categories) == sorted(tokens)
    for name, share in found.categories.items():
        assert (share.tokens, share.kept) == (tokens[name], inside[name])
        assert share.share == (inside[name] / tokens[name] if tokens[name] else None)
    assert (found.total.tokens, found.total.kept) == (tokens.total(), inside.total())


@settings(max_examples=40, deadline=None)
@given(SEQUENCES, SEQUENCES, st.sets(st.integers(0, VOCAB - 1), max_size=4), st.data())
def test_the_curve_is_the_coverage_of_a_set_of_each_size(
    counted: list[tuple[str | None, tuple[int, ...]]],
    unseen: list[tuple[str | None, tuple[int, ...]]],
    required: set[int],
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(max(1, len(required)), VOCAB))
    texts, held_out = [text(RESPONSE_TOKENS, *counted)], text(RESPONSE_TOKENS, *unseen)
    made = count_keep_set(texts, held_out, size, required, VOCAB)
    counts = count_tokens([ids for _, ids in counted], VOCAB)
    assert made.curve.sizes == tuple(range(max(1, len(required)), VOCAB + 1))
    assert made.curve.held_out is not None
    for n, share, unseen_share in zip(made.curve.sizes, made.curve.shares, made.curve.held_out, strict=True):
        keep_set = most_frequent(counts, n, required, VOCAB)
        assert share == pytest.approx(measure_coverage(keep_set, texts).total.share or 0)
        assert unseen_share == pytest.approx(measure_coverage(keep_set, [held_out]).total.share or 0)


def test_a_keep_set_of_prompts_and_responses() -> None:
    prompts = text(PROMPT_TOKENS, ("math", (1, 2, 2, 3)))
    responses = text(RESPONSE_TOKENS, ("math", (4, 4, 5)), ("rag", (4, 6)))
    made = count_keep_set([prompts, responses], None, 4, {0}, VOCAB)
    # 0 is required; 4 occurs three times, 2 twice, then 1 has the lowest id of those that occur once
    assert made.keep_set.token_ids.tolist() == [0, 1, 2, 4]
    assert (made.required, made.occurring) == (1, 3)
    assert made.coverage.kind == RESPONSE_TOKENS
    assert made.coverage.total == Share(5, 3, 0.6)
    assert made.coverage.categories == {"math": Share(3, 2, 2 / 3), "rag": Share(2, 1, 0.5)}
    assert made.held_out is None
    assert made.curve.held_out is None
    alone = count_keep_set([prompts], responses, 3, {0}, VOCAB)
    assert alone.coverage.kind == PROMPT_TOKENS
    assert alone.coverage.total == Share(4, 3, 0.75)
    assert alone.held_out is not None
    assert alone.held_out.kind == RESPONSE_TOKENS
    assert alone.held_out.total == Share(5, 0, 0.0)


def test_an_id_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(KeepSetError, match="token id 12 is outside the vocabulary of 12"):
        count_keep_set([text(PROMPT_TOKENS, (None, (12,)))], None, 4, {0}, VOCAB)


def test_sizes_rise_from_the_smallest_to_all_and_have_the_chosen_one() -> None:
    sizes = curve_sizes(300, 86016, 262144)
    assert (sizes[0], sizes[-1]) == (300, 262144)
    assert 86016 in sizes
    assert list(sizes) == sorted(set(sizes))


def test_texts_of_prompt_and_response_files(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"turns": ["add one one"], "category": "math"}\n{"question": "add"}\n')
    prompts = prompt_text(tmp_path / "p.jsonl", word_tokenizer(None), chat=False)
    assert prompts.sequences == (("math", (4, 5, 5)), (None, (4,)))
    assert prompts.kind == PROMPT_TOKENS
    assert prompts.origin["tokens"] == 4
    write_responses(tmp_path / "r.jsonl", [Response("1", "math", ("add",), (4, 4), (5, 1), "one", "a" * 64)], {})
    responses = response_text(tmp_path / "r.jsonl")
    assert responses.sequences == (("math", (5, 1)),)
    assert responses.kind == RESPONSE_TOKENS


def test_the_record_belongs_to_its_keep_set(tmp_path: Path) -> None:
    made = count_keep_set([text(RESPONSE_TOKENS, ("math", (4, 4, 5)))], None, 3, {0}, VOCAB)
    path = coverage_path(tmp_path / "keep.json")
    save_coverage(made, path)
    assert path.name == "keep.coverage.json"
    assert load_coverage(path, made.keep_set) == json.loads(path.read_text())
    assert json.loads(path.read_text())["coverage"]["total"] == {"tokens": 3, "kept": 3, "share": 1.0}
    other = KeepSet(np.array([0, 1], dtype=np.int64), VOCAB)
    with pytest.raises(KeepSetError, match=r"keep\.coverage\.json is the coverage of the set"):
        load_coverage(path, other)


def test_the_curve_is_a_png_of_the_same_bytes_each_time(tmp_path: Path) -> None:
    responses = text(RESPONSE_TOKENS, ("math", (4, 4, 5)))
    made = count_keep_set([responses], responses, 3, {0}, VOCAB)
    for name in ("a.png", "b.png"):
        save_curve(made, tmp_path / name)
    data = (tmp_path / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data == (tmp_path / "b.png").read_bytes()
