"""Where states are cut out of a verifier's answer, and synthetic ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibration.states import greedy_sequence
from export.mtp.states import states_of_prompts, synthetic_states

if TYPE_CHECKING:
    import pytest

    from ..tiny import TinyHead
    from .conftest import Family


def test_states_lie_at_the_start_and_in_the_middle_of_the_answer(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.mtp.states._ANSWER_TOKENS", 9)
    monkeypatch.setattr(family.model.generation_config, "eos_token_id", None)
    prompts = [[2, 40, 41, 42], [2, 50]]
    made = states_of_prompts(family.model, prompts, window=8)
    assert made.sequences == [greedy_sequence(family.model, prompt, 9) for prompt in prompts]
    assert [state.position for state in made.states] == [4, 8, 2, 6]
    assert [state.token_id for state in made.states] == [
        made.sequences[i][p] for i, p in ((0, 4), (0, 8), (1, 2), (1, 6))
    ]


def test_an_answer_of_one_token(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.mtp.states._ANSWER_TOKENS", 1)
    made = states_of_prompts(family.model, [[2, 40, 41]], window=8)
    assert {state.position for state in made.states} == {3}


def test_synthetic_states(tiny: TinyHead) -> None:
    states = synthetic_states(tiny.config, 64, 6, seed=3)
    again = synthetic_states(tiny.config, 64, 6, seed=3)
    assert all(np.array_equal(a.hidden, b.hidden) for a, b in zip(states, again, strict=True))
    assert not np.array_equal(states[0].hidden, synthetic_states(tiny.config, 64, 1, seed=4)[0].hidden)
    for state in states:
        assert 56 < state.position <= 64
        assert state.keys["sliding"].shape == (2, state.position, 16)
        assert state.values["full"].shape == (1, state.position, 32)
