"""What every test shares: one thread, fixed seeds, the material in ../shared, and the rules for skipping."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.no_skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

REPOSITORY = Path(__file__).resolve().parent.parent

# The tensors of the tests are tiny: more threads would only wait for each other.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `htp` where the QNN wheel is not installed, naming it."""
    if importlib.util.find_spec("onnxruntime_qnn") is not None:
        return
    missing = pytest.mark.skip(reason="the onnxruntime-qnn wheel is not installed (it exists for x86-64 Linux only)")
    for item in items:
        if item.get_closest_marker("htp") is not None:
            item.add_marker(missing)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Same random numbers for a test whether it runs alone or with all others."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The material beside the repository (data, cases); tests that need it are skipped only where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("../shared is absent")
    return folder
