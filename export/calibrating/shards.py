"""The prompts of a shard, or their answers, dealt to jobs; and what a calibration of any drafter gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.errors import CalibrationError
from calibration.prompts import encode_prompt, read_prompt_file
from calibration.responses import is_response_file, read_responses
from export.sources import counted_keep_set

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from calibration.keepset import KeepSet
    from calibration.observations import Observations
    from calibration.responses import ResponseFile
    from export.calibrating.options import CalibrationOptions
    from export.sources import Vocabulary


@dataclass(frozen=True)
class PromptTexts:
    """The file's hash, how many prompts it has, and the tokens of those of this shard by number.

    `answered` holds prompts with their answers, where the file is one of responses, and `responses` is that file.
    """

    sha256: str
    prompts: int
    encoded: Mapping[int, list[int]]
    answered: Mapping[int, list[int]] | None = None
    responses: ResponseFile | None = None


@dataclass(frozen=True)
class Calibrated:
    """Observations, the keep set that the graph had, and whether it was counted here. `remark` is for the user."""

    observations: Observations
    keep_set: KeepSet
    counted: bool
    remark: str | None = None


def read_texts(tokenizer: PreTrainedTokenizerBase, options: CalibrationOptions) -> PromptTexts:
    """The shard's prompts, with their answers where the file is one of responses.

    Raises CalibrationError where the shard has none.
    """
    if is_response_file(options.prompts):
        answers = read_responses(options.prompts)
        numbers = _numbers(options, answers.name, len(answers.responses))
        found = [answers.responses[n] for n in numbers]
        encoded = {n: list(one.prompt_token_ids) for n, one in zip(numbers, found, strict=True)}
        answered = {n: one.token_ids for n, one in zip(numbers, found, strict=True)}
        return PromptTexts(answers.sha256, len(answers.responses), encoded, answered, answers)
    file = read_prompt_file(options.prompts)
    numbers = _numbers(options, file.name, len(file.prompts))
    return PromptTexts(file.sha256, len(file.prompts), {n: encode_prompt(tokenizer, file.prompts[n]) for n in numbers})


def _numbers(options: CalibrationOptions, file: str, prompts: int) -> range:
    numbers = options.shard.indices(prompts)
    if not numbers:
        raise CalibrationError(f"shard {options.shard} has no prompt: {file} holds {prompts}")
    return numbers


def dealt(texts: PromptTexts, options: CalibrationOptions) -> list[tuple[int, ...]]:
    """Numbers of prompts for each job; no job is without."""
    jobs = min(options.jobs, len(texts.encoded))
    return [tuple(shard.indices(texts.prompts)) for shard in options.shard.split(jobs)]


def choose_keep_set(
    given: KeepSet | None, wanted: str | None, vocabulary: Vocabulary, sequences: Sequence[list[int]]
) -> KeepSet:
    """The given keep set, or the one that an export counts from the same texts."""
    # the prompts that counted_keep_set would fall back on are never read: there are sequences
    return given or counted_keep_set(wanted, vocabulary, list(sequences), Path())[0]
