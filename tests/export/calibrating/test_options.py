"""Shards are disjoint, whole and stay so when jobs split them; wrong options are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.calibrating.options import CalibrationOptions, Shard
from quant.errors import UsageError


@pytest.mark.parametrize("prompts", [1, 5, 12, 13])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_shards_and_their_jobs_share_all_prompts(prompts: int, count: int, jobs: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    parts = [part for shard in shards for part in shard.split(jobs)]
    for some in (shards, parts):
        assert sorted(n for shard in some for n in shard.indices(prompts)) == list(range(prompts))
    for shard in shards:
        of_jobs = sorted(n for part in shard.split(jobs) for n in part.indices(prompts))
        assert of_jobs == list(shard.indices(prompts))


def test_the_second_of_three() -> None:
    assert Shard.parse("2/3") == Shard(2, 3)
    assert list(Shard.parse("2/3").indices(8)) == [1, 4, 7]


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "1/0", "a/b", "-1/2", "1/2/3"])
def test_parts_that_do_not_exist(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 0}, "--jobs 0"),
        ({"shard": Shard(1, 2)}, "--keep-set FILE"),
        ({"shard": Shard(1, 2), "keep_set": "1000"}, "--keep-set FILE"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CalibrationOptions(Path("prompts.jsonl"), **options)
    CalibrationOptions(Path("prompts.jsonl"), keep_set="keep.json", shard=Shard(1, 2), jobs=2)
