"""Documents as token lists, and batches of them bucketed by length so that little is padding."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hyco_npu.family.tokenizer import render
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

_PAD = 0
_MAX_DIGITS = 18  # more do not fit the generator's 64 bits


@dataclass(frozen=True)
class Document:
    """Token ids of one exchange; the first `prompt_length` of them are the prompt."""

    ids: list[int]
    prompt_length: int


def read_problems(path: Path) -> list[dict[str, str]]:
    """GSM8K's JSON lines, each with `question` and `answer`; UsageError names the file and line that has not."""
    problems: list[dict[str, str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            problem = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}:{number}: not JSON ({error}); the corpus is JSON lines as GSM8K's") from error
        if not isinstance(problem, dict) or not {"question", "answer"} <= problem.keys():
            raise UsageError(f"{path}:{number}: needs 'question' and 'answer', has {line[:80]!r}")
        problems.append(problem)
    if not problems:
        raise UsageError(f"{path} holds no problem; it has to be JSON lines with 'question' and 'answer'")
    return problems


def encode_problem(tokenizer: PreTrainedTokenizerFast, question: str, answer: str | None = None) -> Document:
    """The chat form of a problem; with no answer the document is the prompt alone."""
    prompt = tokenizer.encode(render(question), add_special_tokens=False)
    if answer is None:
        return Document(prompt, len(prompt))
    ids = tokenizer.encode(render(question, answer), add_special_tokens=False)
    return Document(ids, len(prompt))


def vary_numbers(question: str, rng: np.random.Generator) -> str:
    """Replace numbers at random, so that the verifier cannot recite the answer it was trained on."""

    def other(match: re.Match[str]) -> str:
        digits = match.group()
        if rng.random() < 0.3 or len(digits) > _MAX_DIGITS:
            return digits
        low = 10 ** (len(digits) - 1) if len(digits) > 1 else 2
        return str(rng.integers(low, 10 ** len(digits)))

    return re.sub(r"\d+", other, question)


def epoch_batches(lengths: Sequence[int], tokens_per_batch: int, rng: np.random.Generator) -> list[list[int]]:
    """Document indices of one epoch in batches of about `tokens_per_batch`, near-equal lengths together."""
    jittered = np.asarray(lengths) + rng.uniform(0, 16, len(lengths))
    batches: list[list[int]] = [[]]
    longest = 0
    for index in np.argsort(jittered):
        longest = max(longest, lengths[index])
        if batches[-1] and longest * (len(batches[-1]) + 1) > tokens_per_batch:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(int(index))
    return [batches[i] for i in rng.permutation(len(batches))]


def pad_batch(documents: Sequence[Document], max_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids [batch, length] and the mask of real tokens [batch, length]."""
    length = min(max(len(d.ids) for d in documents), max_length)
    ids = torch.full((len(documents), length), _PAD, dtype=torch.long)
    for row, document in enumerate(documents):
        kept = document.ids[:length]
        ids[row, : len(kept)] = torch.tensor(kept)
    real = torch.arange(length)[None, :] < torch.tensor([min(len(d.ids), length) for d in documents])[:, None]
    return ids, real


def answer_mask(documents: Sequence[Document], length: int) -> torch.Tensor:
    """Which positions [batch, length] lie behind the prompts: the text that a drafter is asked to continue."""
    starts = torch.tensor([document.prompt_length for document in documents])
    return torch.arange(length)[None, :] >= starts[:, None]
