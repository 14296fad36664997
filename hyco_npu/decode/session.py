"""A text under way: a configuration's drafter and a target that accepts by its rule, over shared models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calibration.errors import CalibrationError
from calibration.prompts import chat_token_ids
from hyco_npu.decode.acceptance import rule_of
from hyco_npu.decode.loop import decode
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import PreTrainedTokenizerBase

    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.loop import Round
    from hyco_npu.decode.models import Models


@dataclass(frozen=True)
class GenerationOptions:
    """Length of an answer in tokens, sampling, and the seed that makes it repeatable."""

    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0


class Session:
    """One conversation: `generate` answers token ids that follow the text so far."""

    def __init__(self, models: Models, config: DecodeConfig, options: GenerationOptions) -> None:
        rule = rule_of(config.acceptance, options.sampling)
        self._target = Target(models.verifier.begin(), rule, options.seed, models.clock)
        self._drafter = models.drafter(config)
        self._options = options
        self.token_ids: list[int] = []

    def generate(self, token_ids: Sequence[int], max_new_tokens: int | None = None) -> Iterator[Round]:
        """Rounds of an answer to `token_ids`; the first is their prefill."""
        self.token_ids += token_ids
        limit = self._options.max_new_tokens if max_new_tokens is None else max_new_tokens
        for one in decode(self._target, self._drafter, token_ids, limit):
            self.token_ids += one.emitted
            yield one


def encode_messages(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a conversation through the chat template, up to the model's reply.

    Raises CalibrationError for a tokenizer without a chat template.
    """
    if tokenizer.chat_template is None:
        raise CalibrationError(
            f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; add chat_template.jinja "
            "to its folder or use --no-chat"
        )
    return chat_token_ids(tokenizer, messages)
