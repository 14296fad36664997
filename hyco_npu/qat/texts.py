"""The verifier's answers to the training and validation prompts, made once and kept in the work folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibration.generate import GenerationOptions, answer_batch
from calibration.prompts import encode_prompt, read_prompts
from calibration.responses import is_response_file, read_responses, require_verifier
from export.checkpoint.reader import CheckpointReader
from hyco_npu.family.corpus import Document
from hyco_npu.qat.data import record
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch
    from transformers import Gemma4ForCausalLM, PreTrainedTokenizerBase

    from hyco_npu.qat.data import Recorded
    from hyco_npu.qat.options import QatOptions

TEXTS_FILE = "texts.json"
TRAINING_SAMPLES = 3
"""Sampled answers to a training prompt, beside its greedy one."""
VALIDATION_SAMPLES = 2
_BATCH = 32


@dataclass(frozen=True)
class Texts:
    """Prompts with the verifier's answers; `sampled` has every validation prompt VALIDATION_SAMPLES times, in order."""

    training: list[Document]
    greedy: list[Document]
    sampled: list[Document]


@dataclass(frozen=True)
class RecordedTexts:
    """The same with the verifier's states; training texts without a row to learn from are left out."""

    training: list[Recorded]
    greedy: list[Recorded]
    sampled: list[Recorded]


def make_texts(
    options: QatOptions,
    verifier: Gemma4ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    progress: Callable[[str], None],
) -> Texts:
    """Let the verifier answer: training prompts greedily and sampled, validation prompts as the table needs them.

    A file of responses is trained on as it is. Answers of the work folder are taken where there are some. Raises
    UsageError where a prompt is in both files, ResponseFileError for responses of another verifier.
    """
    path = options.work_dir / TEXTS_FILE
    if path.is_file():
        return _load(path)
    responses = _responses(options) if is_response_file(options.prompts) else []
    training = [d.ids[: d.prompt_length] for d in responses] or _encoded(tokenizer, options.prompts)
    validation = _encoded(tokenizer, options.validation)
    _require_disjoint(options, training, validation)

    def answered(what: str, prompts: list[list[int]], samples: int) -> list[Document]:
        """Greedy answers, or with `samples` so many of every prompt at temperature 1."""
        documents: list[Document] = []
        for sample in range(max(1, samples)):
            generation = GenerationOptions(
                options.recipe.answer_tokens, float(samples > 0), options.recipe.seed + sample
            )
            for start in range(0, len(prompts), _BATCH):
                part = prompts[start : start + _BATCH]
                found = answer_batch(verifier, part, generation)
                documents += [Document([*p, *answer], len(p)) for p, answer in zip(part, found, strict=True)]
                progress(f"verifier answers {what}: {len(documents)}/{len(prompts) * max(1, samples)}")
        return documents

    texts = Texts(
        responses
        or answered("training prompts", training, 0)
        + answered("training prompts, sampled", training, TRAINING_SAMPLES),
        answered("validation prompts", validation, 0),
        answered("validation prompts, sampled", validation, VALIDATION_SAMPLES),
    )
    _save(path, texts)
    return texts


def record_texts(
    texts: Texts, verifier: Gemma4ForCausalLM, device: torch.device, progress: Callable[[str], None]
) -> RecordedTexts:
    """The verifier's states on all texts. Raises UsageError where no training answer has two tokens."""

    def recorded(what: str, documents: Sequence[Document]) -> list[Recorded]:
        progress(f"recording the verifier's states on {len(documents)} {what}")
        return [record(verifier, document, device) for document in documents]

    training = [text for text in recorded("training texts", texts.training) if len(text.rows)]
    greedy = recorded("validation texts", texts.greedy)
    if not training or not any(len(text.rows) for text in greedy):
        raise UsageError("the verifier stops at once on all training or all validation prompts; give other prompts")
    return RecordedTexts(training, greedy, recorded("sampled validation texts", texts.sampled))


def _responses(options: QatOptions) -> list[Document]:
    file = read_responses(options.prompts)
    require_verifier(file, CheckpointReader(options.verifier).sha256)
    return [Document(r.token_ids, len(r.prompt_token_ids)) for r in file.responses]


def _encoded(tokenizer: PreTrainedTokenizerBase, path: Path) -> list[list[int]]:
    return [encode_prompt(tokenizer, prompt) for prompt in read_prompts(path)]


def _require_disjoint(
    options: QatOptions, training: Sequence[Sequence[int]], validation: Sequence[Sequence[int]]
) -> None:
    seen = set(map(tuple, training))
    for number, prompt in enumerate(validation, start=1):
        if tuple(prompt) in seen:
            raise UsageError(
                f"prompt {number} of --validation {options.validation} is also one of --prompts {options.prompts}; "
                "a table of prompts that were trained on would flatter"
            )


def _save(path: Path, texts: Texts) -> None:
    content = {name: [[d.prompt_length, d.ids] for d in documents] for name, documents in vars(texts).items()}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    os.replace(temporary, path)


def _load(path: Path) -> Texts:
    content = json.loads(path.read_text(encoding="utf-8"))
    return Texts(**{name: [Document(ids, length) for length, ids in pairs] for name, pairs in content.items()})
