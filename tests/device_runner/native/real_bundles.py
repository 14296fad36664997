"""Two bundles with real graphs, the Python drafter over them, and texts for `hyco_runner bench` and `serve`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import onnxruntime.capi
from safetensors.numpy import save_file

from export.bundle import open_bundle
from export.bundle.boundary import boundary_of
from export.bundle.manifest import MANIFEST_NAME, FileInfo, Manifest, TargetStatus
from export.engines.htp import TARGETS, compile_graph
from export.hashing import sha256_file
from hyco_npu.decode.bundles import open_chain, open_head, open_slm
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.drafters.registry import MtpEngine, Parts, SlmEngine, build_drafter
from hyco_npu.decode.protocols import Reply

from .real_graphs import write_graph
from .recorded import Sizes, TextRecorder, open_session

if TYPE_CHECKING:
    from hyco_npu.decode.protocols import HeadUpdate
    from hyco_npu.decode.tree import DraftTree

    from .recorded import Session

TARGET = TARGETS["sm8850"]
(ORT,) = Path(onnxruntime.capi.__file__).parent.glob("libonnxruntime.so.*")
SIZES = replace(Sizes(), layer_kinds="ssfsf", owners=(0, 1, 2, 1, 2))
"""Every window slides within a few rounds. The last layer with a cache is a full one, as in E2B: the prefill graph
rotates its keys, but looks at none."""
_NOT_PREFILLED = ("mask_full", "past_keys_2", "past_values_2")


def make_pair(folder: Path, config: dict[str, Any], *, compiled: bool = False) -> Session:
    """Both bundles in `folder`; the session's drafter is a Python one over their QDQ graphs on the CPU."""
    made = open_session(folder, SIZES, config)
    for bundle in (made.mtp, made.slm):
        _add_graphs(bundle, compiled)
    return fresh(made)


def fresh(session: Session, *, simulator: bool = False) -> Session:
    """The session with a drafter before any text."""
    head, slm = open_bundle(session.mtp), open_bundle(session.slm)
    engines = (
        MtpEngine(open_chain(head), open_head(head, simulator=simulator), head.manifest.window),
        SlmEngine(*open_slm(slm, simulator=simulator)),
    )
    return replace(session, drafter=build_drafter(session.config, Parts(*engines, Clock())))


def alter(folder: Path, **changes: Any) -> None:
    """Change fields of a bundle's manifest."""
    path = folder / MANIFEST_NAME
    manifest = Manifest.from_json(path.read_text())
    path.write_text(manifest.model_copy(update=changes).to_json())


def _add_graphs(folder: Path, compiled: bool) -> None:
    manifest = Manifest.from_json((folder / MANIFEST_NAME).read_text())
    (folder / "graphs").mkdir()
    targets: tuple[TargetStatus, ...] = ()
    graphs = []
    for seed, graph in enumerate(manifest.graphs):
        if graph.name == "prefill":
            graph = graph.model_copy(update={"inputs": tuple(t for t in graph.inputs if t.name not in _NOT_PREFILLED)})
        model = folder / "graphs" / f"{graph.name}.onnx"
        weights = f"{graph.name}.weights" if manifest.kind == "slm" else None
        write_graph(model, boundary_of(graph), seed + len(graph.name), weights)
        files = {"qdq": model.name} | ({"weights": weights} if weights else {})
        if compiled and graph.name != "prefill":
            made = compile_graph(model, model.with_suffix(".sm8850.onnx"), TARGET)
            prefix = "simulator_" if manifest.kind == "slm" else ""
            files |= {f"{prefix}context": made.context.name, f"{prefix}binary": made.binary.name}
            targets = (_status(made.qnn_version),)
        graphs.append(graph.model_copy(update={"files": {role: f"graphs/{name}" for role, name in files.items()}}))
    infos = [
        FileInfo(path=f"graphs/{path.name}", size_bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in sorted((folder / "graphs").iterdir())
    ]
    alter(folder, graphs=tuple(graphs), files=(*manifest.files, *infos), targets=targets)


def _status(qnn_version: str) -> TargetStatus:
    return TargetStatus(
        target=TARGET.name,
        soc_model=TARGET.soc_model,
        htp_arch=f"v{TARGET.htp_arch}",
        qnn_version=qnn_version,
        compiled=True,
        simulated=True,
    )


@dataclass(frozen=True)
class Texts:
    """What to play to the runner (a rounds file, and the same as requests), and the trees that must come of it."""

    session: Session
    path: Path
    requests: list[tuple[dict[str, Any], HeadUpdate | None]]
    trees: list[DraftTree]
    texts: list[int]
    matched: list[int | None]


class RoundsRecorder(TextRecorder):
    """Plays texts one after the other, each to a fresh Python drafter, and writes down rounds."""

    def __init__(self, session: Session, seed: int, *, simulator: bool = False) -> None:
        super().__init__(session, seed)
        self._simulator = simulator
        self.requests: list[tuple[dict[str, Any], HeadUpdate | None]] = []
        self.texts: list[int] = []
        self.matched: list[int | None] = []
        self._text = -1

    def begin_text(self, length: int) -> None:
        """The next text."""
        self._text += 1
        self.session = fresh(self.session, simulator=self._simulator)
        config = self.session.config.model_dump(mode="json")
        self.requests.append(({"event": "open", "schema_version": 1, "config": config}, None))
        self._begin(length, length, {"text": self._text, "fresh": True})

    def begin_turn(self, length: int) -> None:
        """A further turn of the same text."""
        self._begin(length, length + 1, {"text": self._text})

    def _begin(self, length: int, rows: int, more: dict[str, Any]) -> None:
        tokens, emitted = self._tokens(length), tuple(self._tokens(1))
        update = self._update(rows)
        self.session.drafter.begin(tokens, Reply((), emitted, False, update))
        said = {"event": "begin", "token_ids": tokens, "emitted": list(emitted)}
        self.events.append({**said, "update": self._count - 1, **more})
        self.requests.append((said, update))

    def round(self, max_depth: int, *, with_truth: bool) -> None:
        """Draft, and accept a random path."""
        tree = self.session.drafter.draft(max_depth)
        row = int(self.rng.integers(tree.rows))
        path = tree.path(row)
        tokens = [tree.token_ids[at] for at in path]
        emitted = tokens + (self._tokens(1) if len(path) < max_depth or not path else [])
        truth = [*tokens, -1, *self._tokens(2)]  # a token that no tree holds: so many match
        update = self._update(len(emitted))
        self.session.drafter.commit(tree, Reply(path, tuple(emitted), False, update))
        draft = {"event": "draft", "max_depth": max_depth}
        commit = {"event": "commit", "accepted": list(path), "emitted": emitted}
        # in a file, what was accepted is another machine's affair
        said = {**commit, "accepted": [0] * 99, "update": self._count - 1}
        self.events += [draft | ({"truth": truth} if with_truth else {}), said]
        self.requests += [(draft, None), (commit, update)]
        self.trees.append(tree)
        self.texts.append(self._text)
        self.matched.append(len(path) if with_truth else None)

    def texts_at(self, path: Path) -> Texts:
        """Everything so far, the rounds written to `path`."""
        config = self.session.config.model_dump(mode="json")
        recording = {"schema_version": 1, "config": config, "events": self.events, "calls": []}
        arrays = {name: np.ascontiguousarray(array) for name, array in self._updates.items()}
        save_file(arrays, path, {"recording": json.dumps(recording)})
        return Texts(self.session, path, self.requests, self.trees, self.texts, self.matched)


def record_texts(session: Session, path: Path, rounds: int, *, simulator: bool = False) -> Texts:
    """Three texts; the windows slide in all of them, and the second has two turns."""
    recorder = RoundsRecorder(session, 1, simulator=simulator)
    for text in range(3):
        recorder.begin_text(9 + text)
        for turn in range(rounds):
            if text == 1 and turn == rounds // 2:
                recorder.begin_turn(4)
            recorder.round(9 if turn % 3 else 2 + turn, with_truth=turn % 2 == 0)
    return recorder.texts_at(path)


def engine_arguments(session: Session, provider: str, **more: object) -> list[str]:
    """The options that bench and serve have in common."""
    options: dict[str, object] = {"mtp": session.mtp, "slm": session.slm, "provider": provider, "ort": ORT}
    if provider != "cpu":
        import onnxruntime_qnn

        options |= {
            "qnn_provider": onnxruntime_qnn.get_library_path(),
            "qnn_backend": onnxruntime_qnn.get_qnn_htp_path(),
        }
    options |= more
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
