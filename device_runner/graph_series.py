"""What was measured of graphs that ran one by one, before anything is computed from it.

    GraphsMeasurement   one device, one way of measuring
    └── GraphSeries     one graph of a bundle: its runs in their order, its load

This is no drafting round: each graph runs by itself, with nothing of the CPU's share between its runs. Times are
milliseconds. This module computes nothing and reaches no device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from device_runner.devices import Identity
    from device_runner.facts import Facts
    from device_runner.thermal_gate import CoolDown


@dataclass(frozen=True)
class GraphSeries:
    """One graph.

    kind: of its bundle, mtp or slm. passes: how often a drafting round runs it. series_ms: its runs, the first one too;
    other_ms: the same runs by other clocks. loads_ms: by name. layers: how many on each unit; off_npu: the layers that
    are not on the NPU; both empty where the tool does not tell. origin: where the figures come from, job or command.
    cool_down, before, after: the wait for a cool phone and its facts around the runs; None where there are none.
    """

    kind: str
    bundle: Path
    binary_sha256: str
    graph: str
    rows: int
    passes: int
    series_ms: tuple[float, ...]
    loads_ms: Mapping[str, float]
    origin: Mapping[str, str]
    other_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    layers: Mapping[str, int] = field(default_factory=dict)
    off_npu: tuple[str, ...] = ()
    cool_down: CoolDown | None = None
    before: Facts | None = None
    after: Facts | None = None


@dataclass(frozen=True)
class GraphsMeasurement:
    """Graphs on a device.

    device: `hub:NAME`, a serial, or the folder that stands for one. provider: who ran them, in words. clock: what a
    time of the series spans. inputs: what the graphs were fed. qnn_runtime: the QNN that loaded the binaries.
    """

    device: str
    identity: Identity | None
    provider: str
    tool: str
    clock: str
    inputs: str
    qnn_runtime: str
    graphs: tuple[GraphSeries, ...]
