"""One tiny head and one tiny SLM with one vocabulary."""

from __future__ import annotations

import pytest

from tests.export.tiny import TinyHead, tiny_head
from tests.export.tiny_slm import VOCAB_SIZE, TinySlm, tiny_slm


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> TinyHead:
    return tiny_head(tmp_path_factory.mktemp("head"), vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="session")
def slm(tmp_path_factory: pytest.TempPathFactory) -> TinySlm:
    return tiny_slm(tmp_path_factory.mktemp("slm"))
