"""Keep sets: counts against collections.Counter, and case 41's ways to use the wrong map."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.errors import KeepSetError
from calibration.keepset import KeepSet, count_tokens, most_frequent, ranked

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 262144
STOPS = (1, 106)


def keep_set(ids: list[int], vocab_size: int = VOCAB) -> KeepSet:
    return KeepSet(np.array(ids, dtype=np.int64), vocab_size)


def write(path: Path, **changes: Any) -> Path:
    """A valid file of {1, 5, 9, 106}, hash by hashlib and struct, with `changes`; None removes a field."""
    fields: dict[str, Any] = {"schema_version": 1, "vocab_size": VOCAB, "token_ids": [1, 5, 9, 106], **changes}
    if "sha256" not in changes and isinstance(fields["token_ids"], list):
        numbers = [fields["vocab_size"], *fields["token_ids"]]
        if all(isinstance(number, int) for number in numbers):
            fields["sha256"] = hashlib.sha256(b"".join(struct.pack("<q", number) for number in numbers)).hexdigest()
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
    return path


def test_positions_and_hash() -> None:
    kept = keep_set([1, 5, 9, 106])
    assert kept.size == 4
    assert [kept.position_of(token_id) for token_id in (1, 5, 9, 106)] == [0, 1, 2, 3]
    assert kept.sha256 == hashlib.sha256(struct.pack("<5q", VOCAB, 1, 5, 9, 106)).hexdigest()
    assert kept.sha256 != keep_set([1, 5, 9, 106], VOCAB - 1).sha256
    for absent in (-1, 0, 2, 105, 107, VOCAB):
        with pytest.raises(KeepSetError, match=f"token id {absent} is not in the keep set of 4"):
            kept.position_of(absent)


def test_ids_cannot_be_changed_afterwards() -> None:
    ids = np.array([1, 5], dtype=np.int64)
    kept = KeepSet(ids, VOCAB)
    ids[0] = 3
    assert kept.token_ids.tolist() == [1, 5]
    with pytest.raises(ValueError, match="read-only"):
        kept.token_ids[0] = 3


def test_save_and_load(tmp_path: Path) -> None:
    path, kept = tmp_path / "keep.json", keep_set([1, 5, 9, 106])
    kept.save(path)
    loaded = KeepSet.load(path, VOCAB, STOPS, expected_sha256=kept.sha256)
    assert loaded.token_ids.tolist() == [1, 5, 9, 106]
    assert loaded.token_ids.dtype == np.int64
    assert loaded.sha256 == kept.sha256
    assert [item.name for item in tmp_path.iterdir()] == ["keep.json"]
    path.unlink()
    with pytest.raises(KeepSetError, match=r"keep\.json cannot be read"):
        KeepSet.load(path, VOCAB, STOPS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [5, 1, 9, 106]}, "id 1 follows a larger one; ids must be sorted"),
        ({"token_ids": [1, 5, 5, 106]}, "id 5 is there twice"),
        ({"token_ids": [1, 9, 106, VOCAB]}, f"id {VOCAB} is outside the vocabulary of {VOCAB}"),
        ({"token_ids": [-1, 1, 106]}, "id -1 is outside"),
        ({"token_ids": [5, 9, 106]}, r"required token ids \[1\] are not in the keep set"),
        ({"token_ids": [5, 9]}, r"required token ids \[1, 106\]"),
        ({"token_ids": []}, "is empty"),
        ({"token_ids": [1, 5.0, 106]}, "list of whole numbers"),
        ({"token_ids": [True, 106]}, "list of whole numbers"),
        ({"token_ids": [1, 106, 2**70], "sha256": "x"}, "list of whole numbers"),
        ({"token_ids": {"1": 0}}, "list of whole numbers"),
        ({"token_ids": None, "sha256": "x"}, "list of whole numbers"),
        ({"vocab_size": 151936}, "is for 151936 tokens, the target has 262144"),
        ({"vocab_size": None, "sha256": "x"}, "is for None tokens"),
        ({"schema_version": 2}, "schema_version 2"),
        ({"sha256": "0" * 64}, "the file records the hash '0000"),
        ({"sha256": None}, "the file records the hash None"),
    ],
)
def test_a_file_that_must_not_be_used(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Case 41: unsorted, duplicate, EOS left out, an id beyond the vocabulary, padded vocabularies, an edited file."""
    path = write(tmp_path / "keep.json", **changes)
    with pytest.raises(KeepSetError, match=rf"keep\.json.*{message}"):
        KeepSet.load(path, VOCAB, STOPS)


def test_the_unchanged_file_loads(tmp_path: Path) -> None:
    assert KeepSet.load(write(tmp_path / "keep.json"), VOCAB, STOPS).token_ids.tolist() == [1, 5, 9, 106]


def test_a_file_can_be_read_for_its_own_vocabulary(tmp_path: Path) -> None:
    loaded = KeepSet.load(write(tmp_path / "keep.json"), None, STOPS)
    assert (loaded.vocab_size, loaded.size) == (VOCAB, 4)
    for size in (True, "5", 5.0):
        with pytest.raises(KeepSetError, match="any target has a whole number"):
            KeepSet.load(write(tmp_path / "keep.json", vocab_size=size, sha256="x"), None, STOPS)


def test_the_map_of_another_run_is_refused(tmp_path: Path) -> None:
    """Case 41: each file is sound by itself; only the hash recorded beside the graph tells them apart."""
    path = write(tmp_path / "other.json", token_ids=[1, 5, 10, 106])
    with pytest.raises(KeepSetError, match="the bundle records the hash"):
        KeepSet.load(path, VOCAB, STOPS, expected_sha256=keep_set([1, 5, 9, 106]).sha256)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "[" * 100_000, "\x80"])
def test_a_file_that_is_no_object(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keep.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KeepSetError, match=r"keep\.json"):
        KeepSet.load(path, VOCAB, STOPS)


def test_ids_of_another_type_are_refused() -> None:
    with pytest.raises(KeepSetError, match="int32"):
        KeepSet(np.array([1], dtype=np.int32), VOCAB)


def test_counts_are_those_of_a_counter() -> None:
    lists = [[3, 3, 1], [], [9, 3]]
    expected = Counter(token for tokens in lists for token in tokens)
    assert count_tokens(iter(lists), 10).tolist() == [expected[token] for token in range(10)]


@pytest.mark.parametrize("token_id", [-1, 10, 2**40])
def test_counting_an_id_outside_the_vocabulary_names_it(token_id: int) -> None:
    with pytest.raises(KeepSetError, match=f"token id {token_id} is outside the vocabulary of 10"):
        count_tokens([[1, token_id]], 10)


def test_most_frequent_breaks_ties_by_the_lower_id() -> None:
    counts = np.array([0, 5, 5, 9, 5, 0], dtype=np.int64)
    assert most_frequent(counts, 2, [], 6).token_ids.tolist() == [1, 3]
    assert most_frequent(counts, 3, [], 6).token_ids.tolist() == [1, 2, 3]
    assert most_frequent(counts, 3, [5], 6).token_ids.tolist() == [1, 3, 5]
    assert most_frequent(counts, 6, [], 6).token_ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert most_frequent(counts, 2, [5, 0, 5], 6).token_ids.tolist() == [0, 5]


def test_ranks_are_those_in_which_tokens_are_kept() -> None:
    counts = np.array([0, 5, 5, 9, 5, 0], dtype=np.int64)
    assert ranked(counts, [5, 2], 6).tolist() == [2, 5, 3, 1, 4, 0]
    assert ranked(counts, [], 6).tolist() == [3, 1, 2, 4, 0, 5]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_most_frequent_is_a_plain_sort(data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(1, 30))
    counts = data.draw(st.lists(st.integers(0, 4), min_size=vocab_size, max_size=vocab_size))
    always = data.draw(st.sets(st.integers(0, vocab_size - 1)))
    size = data.draw(st.integers(max(1, len(always)), vocab_size))
    ranked = sorted(range(vocab_size), key=lambda token: (token not in always, -counts[token], token))
    kept = most_frequent(np.array(counts, dtype=np.int64), size, always, vocab_size)
    assert kept.token_ids.tolist() == sorted(ranked[:size])


def test_most_frequent_refusals() -> None:
    counts = np.zeros(4, dtype=np.int64)
    with pytest.raises(KeepSetError, match=r"counts have shape \(4,\), the vocabulary 5"):
        most_frequent(counts, 2, [], 5)
    with pytest.raises(KeepSetError, match=r"token id 4.*outside the vocabulary of 4"):
        most_frequent(counts, 2, [4], 4)
    for size in (0, 1, 5):
        with pytest.raises(KeepSetError, match=f"a keep set of {size} is not possible: 2 must be kept, there are 4"):
            most_frequent(counts, size, [0, 1], 4)
