"""Splits of prompts by name: train, validation, test.

The seed and the prompt's text alone decide the split: split = first name whose cumulative share exceeds
sha256(seed, text) as a fraction. So one prompt under two ids is never in two splits, adding prompts moves none, and the
same seed puts a prompt of two data sets into the same split. What counts as text is the first turn, which is what
`encode_prompt` gives to models, with its white space evened out.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from calibration.errors import SplitError
from calibration.jsonfile import read_object, replace_file, write_object
from calibration.prompts import joined_prompts, prompt_line, read_prompt_file
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from calibration.prompts import Prompt, PromptFile

SPLITS = ("train", "validation", "test")
SPLITS_FILE = "splits.json"
SCHEMA_VERSION = 1
_SHARE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class SplitRule:
    """How prompts are dealt: `shares` of train, validation and test, which sum to 1, and a seed.

    Raises UsageError for shares that are negative or sum to something else.
    """

    shares: tuple[float, float, float]
    seed: int

    def __post_init__(self) -> None:
        if min(self.shares) < 0 or not math.isclose(sum(self.shares), 1.0, abs_tol=_SHARE_TOLERANCE):
            raise UsageError(
                f"the shares of {', '.join(SPLITS)} are {self.shares}; none may be negative, and their sum must be 1"
            )

    def split_of(self, prompt: Prompt) -> str:
        """Name of the split that `prompt` belongs to."""
        text = " ".join(prompt.turns[0].split())
        digest = hashlib.sha256(json.dumps([self.seed, text]).encode()).digest()
        # 53 bits fit a float exactly, so the fraction stays below 1
        fraction = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
        cuts = list(accumulate(self.shares))
        return SPLITS[bisect_right([cut / cuts[-1] for cut in cuts], fraction)]


def write_splits(files: Sequence[PromptFile], folder: Path, rule: SplitRule) -> dict[str, Any]:
    """Deal the prompts of `files` into `folder`/train.jsonl, validation.jsonl, test.jsonl and describe them.

    A split with share 0 gets no file. Returns what splits.json holds: schema_version, seed, sources (file, sha256,
    prompts) and splits by name (file, sha256, share, prompts). Raises SplitError where a split would be empty, and
    PromptFileError where an id is in two files; then nothing is written.
    """
    dealt: dict[str, list[Prompt]] = {name: [] for name in SPLITS}
    prompts = joined_prompts(files)
    for prompt in prompts:
        dealt[rule.split_of(prompt)].append(prompt)
    shares = {name: share for name, share in zip(SPLITS, rule.shares, strict=True) if share > 0}
    empty = [name for name in shares if not dealt[name]]
    if empty:
        raise SplitError(
            f"the split {empty[0]!r} (share {shares[empty[0]]:g}) gets none of {len(prompts)} prompts; give more "
            "prompts, a larger share or another seed"
        )
    contents = {name: "".join(map(prompt_line, dealt[name])).encode() for name in shares}
    described = {
        "schema_version": SCHEMA_VERSION,
        "seed": rule.seed,
        "sources": [{"file": file.name, "sha256": file.sha256, "prompts": len(file.prompts)} for file in files],
        "splits": {
            name: {
                "file": f"{name}.jsonl",
                "sha256": hashlib.sha256(contents[name]).hexdigest(),
                "share": share,
                "prompts": len(dealt[name]),
            }
            for name, share in shares.items()
        },
    }
    _replace_splits(folder, contents, described)
    return described


def read_split(folder: Path, name: str) -> PromptFile:
    """The prompts of split `name` in `folder`.

    Raises SplitError where there is no such split, and where its file is not the one that was written.
    """
    recorded = _recorded(folder)
    if name not in recorded:
        raise SplitError(f"{folder / SPLITS_FILE} names no split {name!r}; it has {', '.join(recorded)}")
    file = read_prompt_file(folder / f"{name}.jsonl")
    if file.sha256 != recorded[name]:
        raise SplitError(
            f"{folder / file.name} has the hash {file.sha256}, {SPLITS_FILE} records {recorded[name]}: it was changed "
            "since; split the prompts again"
        )
    return file


def split_names(folder: Path) -> tuple[str, ...]:
    """Names of the splits in `folder`. Raises SplitError where it holds none."""
    return tuple(_recorded(folder))


def _recorded(folder: Path) -> dict[str, str]:
    """Hashes of the splits' files by name."""
    splits: Any = read_object(folder / SPLITS_FILE, SCHEMA_VERSION, SplitError).get("splits")
    try:
        found = {name: str(splits[name]["sha256"]) for name in SPLITS if name in splits}
    except (TypeError, KeyError) as error:
        raise SplitError(f"{folder / SPLITS_FILE} does not describe splits ({error!r}); split again") from error
    return found


def _replace_splits(folder: Path, contents: dict[str, bytes], described: dict[str, Any]) -> None:
    # splits.json goes first and comes last: where it is, all of its files are.
    folder.mkdir(parents=True, exist_ok=True)
    for name in (SPLITS_FILE, *(f"{name}.jsonl" for name in SPLITS)):
        (folder / name).unlink(missing_ok=True)
    for name, data in contents.items():
        replace_file(folder / f"{name}.jsonl", data)
    write_object(folder / SPLITS_FILE, described)
