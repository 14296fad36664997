"""The tiny family of the head's export tests, and a small SLM with the family's tokenizer."""

from __future__ import annotations

import pytest

from ..mtp.conftest import family

__all__ = ["family"]


@pytest.fixture(autouse=True)
def _answers_as_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests shorten the verifier's answers in this process, where spawned ones do not see it."""
    monkeypatch.setattr("export.mtp.states._ANSWER_TOKENS", 48)
