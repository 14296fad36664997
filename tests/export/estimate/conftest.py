"""Bundles with tiny graphs, and a compiler that answers with a recorded profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from export.estimate import estimate as estimate_module

from .builders import recorded_compile, write_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from export.bundle import Bundle


@pytest.fixture
def mtp(tmp_path: Path) -> Bundle:
    return write_bundle(tmp_path / "mtp bundle", "mtp", {"mtp_step": 1})


@pytest.fixture
def slm(tmp_path: Path) -> Bundle:
    """Prefill before drafting, so that the order of the graphs cannot decide."""
    return write_bundle(tmp_path / "slm bundle", "slm", {"slm_prefill": 128, "slm_draft": 32})


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is needed."""
    monkeypatch.setattr(estimate_module, "compile_for_proxy", recorded_compile)
    monkeypatch.setattr(estimate_module, "require_estimator", lambda: None)
