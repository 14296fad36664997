"""The verifier's greedy answers to an export's prompts, many at a time.

This module does not know what is made of them. The tokens are those of `calibration.states.greedy_sequence`, prompt by
prompt (see `calibration.generate`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.generate import GenerationOptions, answer_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Gemma4ForCausalLM

_BATCH = 16


def greedy_sequences(verifier: Gemma4ForCausalLM, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """Every prompt with up to `new_tokens` greedy tokens behind it, ending at a stop token; in the prompts' order."""
    options = GenerationOptions(new_tokens)
    sequences: list[list[int]] = [[] for _ in prompts]
    # near-equal lengths together: little is padding
    order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index))
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        answers = answer_batch(verifier, [prompts[row] for row in rows], options)
        for row, answer in zip(rows, answers, strict=True):
            sequences[row] = [*prompts[row], *answer]
    return sequences
