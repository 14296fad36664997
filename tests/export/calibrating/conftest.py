"""The tiny family of the head's export tests; graphs of the SLM are traced once."""

from __future__ import annotations

import pytest

from ..mtp.conftest import family
from ..slm.conftest import _small_chunks_and_traces_made_once

__all__ = ["_small_chunks_and_traces_made_once", "family"]


@pytest.fixture(autouse=True)
def _answers_as_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests shorten the verifier's answers in this process, where spawned ones do not see it."""
    monkeypatch.setattr("export.mtp.states._ANSWER_TOKENS", 48)
