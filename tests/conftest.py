"""What every test shares: one thread, fixed seeds, the material in ../shared, and the rules for skipping."""

from __future__ import annotations

import importlib.util
import random
import shutil
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
    """Skip tests whose marker asks for what is not installed, naming it."""
    missing = {}
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        missing["htp"] = "the onnxruntime-qnn wheel is not installed (it exists for x86-64 Linux only)"
    if shutil.which("adb") is None:
        missing["adb"] = "adb is not installed (Debian's package adb)"
    if shutil.which("cmake") is None or not Path("/usr/include/nlohmann/json.hpp").is_file():
        missing["native"] = "cmake or nlohmann/json.hpp is not installed (Debian's cmake and nlohmann-json3-dev)"
    if shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("qemu-aarch64") is None:
        missing["cross"] = "g++-aarch64-linux-gnu or qemu-user is not installed (Debian's packages)"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


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
