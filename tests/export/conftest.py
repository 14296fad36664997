"""One tiny head for all tests of graphs, passes, engines and the MTP export; nobody changes it."""

from __future__ import annotations

import pytest

from .tiny import TinyHead, tiny_head


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyHead:
    """A head of 4 layers, window 8, 300 tokens."""
    return tiny_head(tmp_path_factory.mktemp("head"))
