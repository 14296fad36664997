"""Phases add up to the time that passed inside them, however they are nested."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hyco_npu.decode import clock as clock_module
from hyco_npu.decode.clock import Clock


class Watch:
    """A clock's idea of time, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=watch.perf_counter))
    return watch


def test_nested_phases_sum_to_the_wall_time(watch: Watch) -> None:
    clock = Clock()
    watch.now += 64.0  # in no phase
    started = watch.now
    with clock.phase("device.slm"):
        watch.now += 1.0
        with clock.phase("device.embed"):
            watch.now += 2.0
            with clock.phase("device.table"):
                watch.now += 4.0
            watch.now += 8.0
        watch.now += 16.0
        with clock.phase("device.embed"):
            watch.now += 32.0
    phases = clock.take()
    assert phases == {"device.slm": 17.0, "device.embed": 42.0, "device.table": 4.0}
    assert sum(phases.values()) == watch.now - started


def test_a_phase_inside_itself_is_counted_once(watch: Watch) -> None:
    clock = Clock()
    with clock.phase("a"):
        watch.now += 1.0
        with clock.phase("a"):
            watch.now += 2.0
    assert clock.take() == {"a": 3.0}


def test_time_between_phases_is_nobodys(watch: Watch) -> None:
    clock = Clock()
    for seconds in (1.0, 2.0):
        with clock.phase("a"):
            watch.now += seconds
        watch.now += 100.0
    assert clock.take() == {"a": 3.0}
    watch.now += 100.0
    assert clock.take() == {}


def test_taken_inside_a_phase_the_rest_counts_later(watch: Watch) -> None:
    clock = Clock()
    with clock.phase("a"):
        watch.now += 1.0
        assert clock.take() == {"a": 1.0}
        watch.now += 2.0
    assert clock.take() == {"a": 2.0}


def test_a_phase_that_raises_is_closed(watch: Watch) -> None:
    clock = Clock()

    def fail() -> None:
        with clock.phase("outer"), clock.phase("inner"):
            watch.now += 1.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    watch.now += 50.0
    with clock.phase("after"):
        watch.now += 2.0
    assert clock.take() == {"outer": 0.0, "inner": 1.0, "after": 2.0}


def test_moved_time_leaves_the_sum_alone(watch: Watch) -> None:
    clock = Clock()
    with clock.phase("device.link"):
        watch.now += 5.0
    clock.move("device.link", "device.slm", 2.0)
    clock.move("device.link", "device.slm", 1.0)
    assert clock.take() == {"device.link": 2.0, "device.slm": 3.0}
