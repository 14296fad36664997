"""Text that appears as it is accepted: the tokenizer's decoding of the tokens so far, cut where it may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Turns emitted tokens into pieces of text whose concatenation is the whole text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._shown = 0

    @property
    def text(self) -> str:
        """All of it, special tokens left out."""
        return str(self._tokenizer.decode(self._token_ids, skip_special_tokens=True))

    def push(self, token_ids: Sequence[int]) -> str:
        """What these tokens add; a character whose bytes are not all there waits for the rest."""
        self._token_ids += token_ids
        whole = self.text.rstrip(_REPLACEMENT)
        piece = whole[self._shown :]
        self._shown += len(piece)
        return piece

    def finish(self) -> str:
        """What was held back."""
        piece = self.text[self._shown :]
        self._shown += len(piece)
        return piece
