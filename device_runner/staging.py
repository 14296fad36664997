"""A folder as it will lie on the device: the runner, the bundles, recorded rounds; of each only what is read there.

    runner/              the runner and its libraries (on the CPU without QNN's)
    mtp/, slm/           a pair's bundles: manifest, keep set, tables, and the graphs of one provider
    mtp-b/, slm-b/       the second pair's, where it has others
    rounds.safetensors

The folder holds links to the files, so nothing is copied on this machine.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.elf import read_elf
from device_runner.runner_folder import DESCRIPTION_NAME
from export.bundle.manifest import MANIFEST_NAME
from export.bundle.onnx_files import external_files, read_skeleton
from export.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from device_runner.runner_folder import Provider, RunnerFolder
    from export.bundle.manifest import GraphInfo
    from export.bundle.reader import Bundle

RUNNER_DIR, ROUNDS_NAME = "runner", "rounds.safetensors"


@dataclass(frozen=True)
class Pair:
    """A head's and an SLM's bundle under a label, "A" or "B"."""

    label: str
    mtp: Bundle
    slm: Bundle

    @property
    def bundles(self) -> tuple[Bundle, Bundle]:
        """Both."""
        return self.mtp, self.slm


@dataclass(frozen=True)
class StagedPair:
    """Where a pair lies below the staged folder."""

    mtp: str
    slm: str


def graph_file(bundle: Bundle, graph: GraphInfo, provider: Provider) -> str:
    """The .onnx file of a graph that the provider opens, relative to the bundle.

    The simulator takes a graph that was compiled alone; an SLM's prefill graph runs on the CPU there, where it is
    quicker. Raises BundleError for a graph that was not compiled.
    """
    if provider == "cpu" or (provider == "simulator" and _is_prefill(bundle, graph)):
        roles: tuple[str, ...] = ("qdq",)
    elif provider == "simulator" and bundle.manifest.slm is not None:
        roles = ("simulator_context",)
    elif provider == "simulator":
        roles = ("simulator_context", "context")
    else:
        roles = ("context",)
    for role in roles:
        if role in graph.files:
            return graph.files[role]
    raise BundleError(
        f"bundle {bundle.folder}: graph {graph.name!r} has no {roles[-1]!r} file, which the provider {provider} opens: "
        "export it on a machine with the HTP compiler (x86-64 Linux)"
    )


def provider_files(bundle: Bundle, provider: Provider) -> tuple[str, ...]:
    """Every file of a bundle that a runner with this provider reads, relative and sorted.

    Raises BundleError as `graph_file`, and for a bundle without tables.
    """
    manifest = bundle.manifest
    tables = [manifest.table, *([manifest.per_layer_table] if manifest.kind == "slm" else [])]
    names = {MANIFEST_NAME, manifest.keep_set.file}
    for table in tables:
        if table is None:
            raise BundleError(f"bundle {bundle.folder} has no embedding table; export it again without --no-table")
        names.add(table.file)
    for graph in manifest.graphs:
        onnx = graph_file(bundle, graph, provider)
        folder = posixpath.dirname(onnx)
        others = external_files(read_skeleton(bundle.path(onnx)))
        names |= {onnx, *(posixpath.normpath(posixpath.join(folder, name)) for name in others)}
    return tuple(sorted(names))


def runner_files(runner: RunnerFolder, provider: Provider) -> tuple[str, ...]:
    """What a runner with this provider opens: the whole folder; on the CPU itself, ONNX Runtime and what these need.

    Raises PieceError for a library that cannot be read.
    """
    if provider != "cpu" or runner.description.qnn_provider is None:
        return runner.names
    wanted = [runner.description.runner, runner.description.ort]
    for name in wanted:
        wanted += [
            other for other in read_elf(runner.folder / name).needed if other in runner.names and other not in wanted
        ]
    return (*wanted, DESCRIPTION_NAME)


def stage(folder: Path, runner: RunnerFolder, pairs: Sequence[Pair], provider: Provider) -> dict[str, StagedPair]:
    """Fill an empty folder; where each label's bundles lie in it. A bundle that both pairs have lies there once."""
    _link_all(runner.folder, runner_files(runner, provider), folder / RUNNER_DIR)
    placed: dict[Path, str] = {}
    staged = {}
    for pair in pairs:
        for bundle in pair.bundles:
            if bundle.folder not in placed:
                kind = bundle.manifest.kind
                name = kind if kind not in placed.values() else f"{kind}-{pair.label.lower()}"
                placed[bundle.folder] = name
                _link_all(bundle.folder, provider_files(bundle, provider), folder / name)
        staged[pair.label] = StagedPair(*(placed[bundle.folder] for bundle in pair.bundles))
    return staged


def stage_rounds(folder: Path, rounds: Path) -> None:
    """Add a file of recorded rounds."""
    (folder / ROUNDS_NAME).symlink_to(rounds.resolve())


def _is_prefill(bundle: Bundle, graph: GraphInfo) -> bool:
    return bundle.manifest.slm is not None and graph.name == bundle.manifest.slm.prefill_graph


def _link_all(source: Path, names: Iterable[str], target: Path) -> None:
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to((source / name).resolve())
