"""The keep set: the part of the vocabulary that a restricted output layer and its embedding table hold.

Position i of the graph's logits is token `token_ids[i]`; the hash ties a graph, a table and a drafter to one set, so a
map of another run cannot be used by accident. Knows nothing of tokenizers: ids only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from calibration.errors import KeepSetError
from calibration.jsonfile import read_object, write_object

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class KeepSet:
    """`token_ids` int64 [size], rising without repetition, each in [0, vocab_size); compare sets by `sha256`.

    Raises KeepSetError naming the first id that breaks this.
    """

    token_ids: npt.NDArray[np.int64]
    vocab_size: int

    def __post_init__(self) -> None:
        if self.token_ids.dtype != np.int64 or self.token_ids.ndim != 1:
            raise KeepSetError(
                f"keep set ids are {self.token_ids.dtype} {self.token_ids.shape}; int64 (size,) is needed"
            )
        if not self.token_ids.size:
            raise KeepSetError("the keep set is empty; keep at least the stop tokens")
        outside = self.token_ids[(self.token_ids < 0) | (self.token_ids >= self.vocab_size)]
        if outside.size:
            raise KeepSetError(f"keep set id {outside[0]} is outside the vocabulary of {self.vocab_size} tokens")
        steps = np.diff(self.token_ids)
        if (steps == 0).any():
            raise KeepSetError(f"keep set id {self.token_ids[1:][steps == 0][0]} is there twice; ids must be unique")
        if (steps < 0).any():
            raise KeepSetError(
                f"keep set id {self.token_ids[1:][steps < 0][0]} follows a larger one; ids must be sorted"
            )
        owned = self.token_ids.copy()
        owned.flags.writeable = False
        object.__setattr__(self, "token_ids", owned)

    @property
    def size(self) -> int:
        """Number of kept tokens."""
        return int(self.token_ids.size)

    @cached_property
    def sha256(self) -> str:
        """Hash of vocab_size and the ids, as little-endian int64."""
        return hashlib.sha256(np.concatenate([[self.vocab_size], self.token_ids]).astype("<i8").tobytes()).hexdigest()

    def position_of(self, token_id: int) -> int:
        """Index of `token_id` among the logits. Raises KeepSetError for a token that is not kept."""
        position = int(np.searchsorted(self.token_ids, token_id))
        if position == self.size or self.token_ids[position] != token_id:
            raise KeepSetError(f"token id {token_id} is not in the keep set of {self.size} tokens")
        return position

    def require(self, token_ids: Iterable[int]) -> None:
        """Raise KeepSetError unless all `token_ids` (stop and special tokens) are kept."""
        missing = sorted(set(token_ids) - set(self.token_ids.tolist()))
        if missing:
            raise KeepSetError(f"required token ids {missing} are not in the keep set of {self.size}; add them to it")

    def save(self, path: Path) -> None:
        """Write the set as JSON: schema_version, vocab_size, sha256, token_ids."""
        header = {"schema_version": SCHEMA_VERSION, "vocab_size": self.vocab_size, "sha256": self.sha256}
        write_object(path, {**header, "token_ids": self.token_ids.tolist()})

    @staticmethod
    def load(
        path: Path, vocab_size: int | None, required_ids: Iterable[int], *, expected_sha256: str | None = None
    ) -> KeepSet:
        """Read a set for a target of `vocab_size` tokens that must hold `required_ids`.

        `vocab_size` None stands for what the file says; `expected_sha256` is what a bundle recorded for its graphs.
        Raises KeepSetError for an absent or malformed file, unsorted, repeated or foreign ids, another vocabulary, a
        missing required id and a hash that does not match.
        """
        fields = read_object(path, SCHEMA_VERSION, KeepSetError)
        recorded = fields.get("vocab_size")
        if type(recorded) is not int or vocab_size not in (None, recorded):
            target = "any target has a whole number" if vocab_size is None else f"the target has {vocab_size}"
            raise KeepSetError(f"{path} is for {recorded!r} tokens, {target}")
        ids = fields.get("token_ids")
        if not isinstance(ids, list) or not all(type(token_id) is int and abs(token_id) < 2**63 for token_id in ids):
            raise KeepSetError(f"{path}: token_ids must be a list of whole numbers")
        try:
            keep_set = KeepSet(np.array(ids, dtype=np.int64), recorded)
            keep_set.require(required_ids)
        except KeepSetError as error:
            raise KeepSetError(f"{path}: {error}") from error
        for source, sha256 in (("the file", fields.get("sha256")), ("the bundle", expected_sha256 or keep_set.sha256)):
            if sha256 != keep_set.sha256:
                raise KeepSetError(f"{path}: {source} records the hash {sha256!r}, its ids have {keep_set.sha256}")
        return keep_set


def count_tokens(token_lists: Iterable[Iterable[int]], vocab_size: int) -> npt.NDArray[np.int64]:
    """How often each id occurs, int64 [vocab_size]. Raises KeepSetError naming an id outside the vocabulary."""
    ids = np.fromiter(chain.from_iterable(token_lists), dtype=np.int64)
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise KeepSetError(f"token id {outside[0]} is outside the vocabulary of {vocab_size}; wrong tokenizer?")
    return np.bincount(ids, minlength=vocab_size)


def ranked(counts: npt.NDArray[np.int64], always: Iterable[int], vocab_size: int) -> npt.NDArray[np.int64]:
    """All ids in the order in which they are kept, int64 [vocab_size]: `always` by id, then by falling counts.

    Ties go to the lower id. Raises KeepSetError for counts of another vocabulary and an `always` id outside it.
    """
    if counts.shape != (vocab_size,):
        raise KeepSetError(f"counts have shape {counts.shape}, the vocabulary {vocab_size} tokens; count them again")
    first = np.array(sorted(set(always)), dtype=np.int64)
    outside = first[(first < 0) | (first >= vocab_size)]
    if outside.size:
        raise KeepSetError(f"token id {outside[0]}, which must be kept, is outside the vocabulary of {vocab_size}")
    # a stable sort of the negated counts leaves equal counts in id order
    order = np.argsort(-counts, kind="stable")
    return np.concatenate([first, order[~np.isin(order, first)]])


def most_frequent(counts: npt.NDArray[np.int64], size: int, always: Iterable[int], vocab_size: int) -> KeepSet:
    """The `size` most frequent tokens of `counts` [vocab_size], with all of `always` among them.

    Ties go to the lower id. Raises KeepSetError as `ranked` does, and for a size above the vocabulary or below the
    number of `always`.
    """
    kept = set(always)
    order = ranked(counts, kept, vocab_size)
    if not max(len(kept), 1) <= size <= vocab_size:
        raise KeepSetError(f"a keep set of {size} is not possible: {len(kept)} must be kept, there are {vocab_size}")
    return KeepSet(np.sort(order[:size]), vocab_size)
