"""The verifier states that calibration and checks run on: from prompts where the verifier can run, else synthetic.

Synthetic states have plausible sizes and no meaning: they serve size and speed work on random checkpoints, and every
result made with them says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration.states import HeadState, record_states
from export.answers import greedy_sequences
from export.graphs.mtp import KINDS, layer_of_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Gemma4ForCausalLM

    from export.checkpoint.mtp import MtpConfig

_ANSWER_TOKENS = 48
_STATES_PER_PROMPT = 2


@dataclass(frozen=True)
class PromptStates:
    """States of prompts with the verifier's own greedy answers, and the token sequences themselves."""

    states: list[HeadState]
    sequences: list[list[int]]


def states_of_prompts(verifier: Gemma4ForCausalLM, prompts: Sequence[Sequence[int]], window: int) -> PromptStates:
    """Answer every prompt greedily and cut states at the answer's start and at its middle."""
    return states_of_answers(verifier, prompts, greedy_sequences(verifier, prompts, _ANSWER_TOKENS), window)


def states_of_answers(
    verifier: Gemma4ForCausalLM, prompts: Sequence[Sequence[int]], sequences: list[list[int]], window: int
) -> PromptStates:
    """`states_of_prompts` of `sequences` that are there: every prompt with an answer of at least one token."""
    positions = []
    for prompt, sequence in zip(prompts, sequences, strict=True):
        last = len(sequence) - 1
        step = max(1, (last - len(prompt)) // _STATES_PER_PROMPT)
        positions.append([min(len(prompt) + i * step, last) for i in range(_STATES_PER_PROMPT)])
    return PromptStates(list(record_states(verifier, sequences, positions, window)), sequences)


def synthetic_states(config: MtpConfig, window: int, count: int, seed: int) -> list[HeadState]:
    """Gaussian states of the head's dimensions with nearly full windows."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, std: float = 1.0) -> np.ndarray:
        return (std * rng.standard_normal(shape)).astype(np.float32)

    states = []
    for _ in range(count):
        rows = window - int(rng.integers(0, max(1, window // 8)))
        keys, values = {}, {}
        for kind in KINDS:
            layer = layer_of_kind(config, kind)
            # Real keys are normalised with a learned weight; this keeps scores in a plausible range.
            keys[kind] = normal(layer.num_key_value_heads, rows, layer.head_dim, std=layer.head_dim**-0.5)
            values[kind] = normal(layer.num_key_value_heads, rows, layer.head_dim)
        width = config.backbone_hidden_size
        states.append(HeadState(0, rows, normal(width), normal(width), keys, values))
    return states


def halved(state: HeadState) -> HeadState:
    """The state with keys and values rounded to float16, as sample files keep them."""

    def rounded(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {kind: array.astype(np.float16).astype(np.float32) for kind, array in arrays.items()}

    return HeadState(
        state.token_id, state.position, state.embedding, state.hidden, rounded(state.keys), rounded(state.values)
    )
