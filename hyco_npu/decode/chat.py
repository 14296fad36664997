"""A conversation: each turn goes through the chat template, and only what is new is fed to verifier and drafters.

Where the template renders the conversation so far in other tokens than those that were fed and emitted (an answer cut
at its limit, text that tokenises differently), the text is begun anew; `prefilled` tells how many tokens a turn fed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyco_npu.decode.session import Session, encode_messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.loop import Round
    from hyco_npu.decode.models import Models
    from hyco_npu.decode.session import GenerationOptions


class Chat:
    """Turns of user and model with one configuration."""

    def __init__(self, models: Models, config: DecodeConfig, options: GenerationOptions) -> None:
        self._models, self._config, self._options = models, config, options
        self._session = Session(models, config, options)
        self.messages: list[dict[str, str]] = []
        self.prefilled = 0

    @property
    def answer(self) -> str:
        """The last answer."""
        return self.messages[-1]["content"] if self.messages else ""

    def rounds(self, prompt: str) -> Iterator[Round]:
        """Answer a turn; it joins the history when the last round has been taken."""
        messages = [*self.messages, {"role": "user", "content": prompt}]
        whole = encode_messages(self._models.tokenizer, messages)
        known = self._session.token_ids
        if known and whole[: len(known)] != known:
            self._session, known = Session(self._models, self._config, self._options), []
        new = whole[len(known) :]
        self.prefilled = len(new)
        emitted: list[int] = []
        for one in self._session.generate(new):
            emitted += one.emitted
            yield one
        text = str(self._models.tokenizer.decode(emitted, skip_special_tokens=True))
        self.messages = [*messages, {"role": "assistant", "content": text}]
