"""Which tokens followed the last few tokens where a text had them before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class NgramIndex:
    """One text's n-grams of `shortest` to `longest` tokens, and the places of the tokens that followed each."""

    def __init__(self, longest: int, shortest: int) -> None:
        self._longest, self._shortest = longest, shortest
        self.text: list[int] = []
        # n-gram -> places, rising; the text's own suffix has none yet
        self._followers: dict[tuple[int, ...], list[int]] = {}

    def extend(self, token_ids: Sequence[int]) -> None:
        """Read on."""
        for token in token_ids:
            place = len(self.text)
            for length in range(self._shortest, min(self._longest, place) + 1):
                self._followers.setdefault(tuple(self.text[place - length :]), []).append(place)
            self.text.append(token)

    def places(self, path: Sequence[int] = ()) -> list[int]:
        """Places in the text, rising, behind earlier occurrences of the longest suffix of text and `path` with any."""
        end = (*self.text[-self._longest :], *path)[-self._longest :]
        for length in range(len(end), self._shortest - 1, -1):
            places = self._followers.get(end[-length:])
            if places is not None:
                return places
        return []
