"""What a benchmark run measured, before anything is computed from it.

    Measurement   one run: a device, one or two bundle pairs, blocks in the order in which they ran
    └── Block     one process of the native runner: its loads, its rounds, the phone before and after
        └── RoundSample   one drafting round

Times are milliseconds of the device's monotonic clock. On the CPU or on the x86 simulator they are that machine's and
say nothing about a phone; `RunnerInfo.provider` names it. This module computes nothing and touches no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from device_runner.devices import Identity
    from device_runner.facts import Facts
    from device_runner.thermal_gate import CoolDown


@dataclass(frozen=True)
class DraftedTree:
    """A tree as the runner prints it: by row, the root first, whose parent is None."""

    token_ids: tuple[int, ...]
    parents: tuple[int | None, ...]
    scores: tuple[float, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class RoundSample:
    """One round. number: its place in the block. text: which recorded text it drafted for. start_ns: monotonic clock.

    parts: ms by name (mtp_step_1, slm_pass_1, tables, topk, tree, feeds, state, ...). matched: how many tokens of the
    recorded text the tree holds from the root down; None where the recording does not carry the text on.
    """

    number: int
    text: int
    start_ns: int
    total_ms: float
    parts: Mapping[str, float]
    matched: int | None
    tree: DraftedTree


@dataclass(frozen=True)
class GraphLoad:
    """Opening one graph: its session, and before it the check of its files' hashes."""

    graph: str
    provider: str
    milliseconds: float
    verify_ms: float


@dataclass(frozen=True)
class RunnerInfo:
    """What the runner says of itself. provider: cpu, simulator or htp."""

    version: str
    provider: str
    ort_version: str | None
    abi: str
    qnn_build: str | None
    perf_mode: str | None
    cpu_mask: str | None
    threads: int


@dataclass(frozen=True)
class Block:
    """One process. bundle: the label of a bundle pair, "A" or "B". cool_down: None where the device has no gate.

    profiled: QNN's profiling was on, so its times are no timing. Facts are None for a device that is this machine.
    """

    bundle: str
    runner: RunnerInfo
    loads: tuple[GraphLoad, ...]
    rounds: tuple[RoundSample, ...]
    profiled: bool
    cool_down: CoolDown | None
    before: Facts | None
    after: Facts | None


@dataclass(frozen=True)
class BundlePair:
    """The head's and the SLM's bundle under one label, with their manifests' SHA-256."""

    label: str
    mtp: Path
    slm: Path
    mtp_sha256: str
    slm_sha256: str


@dataclass(frozen=True)
class TreeCheck:
    """The device's trees against the host's for one label.

    reference: the host's engine (cpu or simulator). shares: by round, nodes that both trees have over nodes that either
    has. needed: the lowest share that passes. repeatable: whether later passes over the same rounds gave equal trees.
    """

    label: str
    reference: str
    shares: tuple[float, ...]
    needed: float
    repeatable: bool


@dataclass(frozen=True)
class Measurement:
    """A run. device: the serial, or the folder that stands for one. usb_powered: whether USB fed the phone.

    recorded_rounds: how many the file holds. A block that runs more starts again, so its round `number` is the recorded
    round number % recorded_rounds. None: not known; then every number of a block is another recorded round.
    """

    device: str
    identity: Identity | None
    pairs: tuple[BundlePair, ...]
    rounds_file: Path
    rounds_sha256: str
    config: str
    blocks: tuple[Block, ...]
    tree_checks: tuple[TreeCheck, ...]
    warm_up_rounds: int
    usb_powered: bool | None
    recorded_rounds: int | None = None
