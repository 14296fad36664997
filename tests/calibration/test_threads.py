"""torch on one thread, and on as many as before afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from calibration.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_one_thread_meanwhile() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_an_exception_gives_them_back() -> None:
    with pytest.raises(ZeroDivisionError), one_thread():
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 3
