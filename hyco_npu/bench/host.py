"""The host's side of a comparison: the Python drafter over bundles, led along recorded rounds.

    begin -> the drafter's begin;  draft -> a tree;  commit -> the drafter's own tree is walked along the emitted tokens

The native runner is led the same way, so both drafters stand at the same text in every round whatever each drafted,
and their trees can be compared. References: "cpu" (quantised graphs on ONNX Runtime) and "simulator" (the compiled
graphs on Qualcomm's; the SLM's prefill graph runs on the CPU there too).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

from calibration.states import kind_of_layer_type
from device_runner.measurement import BundlePair, DraftedTree
from export.bundle.manifest import MANIFEST_NAME
from export.engines.htp import why_unavailable
from export.mtp.check import head_config
from hyco_npu import __version__
from hyco_npu.bench.errors import BenchError
from hyco_npu.bench.rounds import Begin, Draft, RecordedTrees
from hyco_npu.decode import bundles
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.drafters.parts import MtpEngine, Parts, SlmEngine
from hyco_npu.decode.drafters.registry import build_drafter
from hyco_npu.decode.protocols import Reply
from hyco_npu.decode.tree import DraftTree
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from device_runner.staging import Pair
    from export.bundle.reader import Bundle
    from export.checkpoint.mtp import MtpConfig
    from hyco_npu.bench.rounds import Rounds
    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.protocols import Drafter, HeadUpdate

Reference = Literal["cpu", "simulator"]

_FOREIGN = "the rounds are of another verifier; record them with the bundles' own"


def reference_for(provider: str, pairs: Sequence[Pair]) -> Reference:
    """What the trees of a provider are compared with: the simulator for compiled graphs, where it can run them."""
    wants = provider in ("simulator", "htp")
    return "simulator" if wants and why_unavailable() is None and all(map(_simulated, pairs)) else "cpu"


def open_parts(pair: Pair, reference: Reference) -> Parts:
    """The engines of both bundles."""
    mtp, slm = pair.bundles
    simulator = reference == "simulator"
    head = MtpEngine(bundles.open_chain(mtp), bundles.open_head(mtp, simulator=simulator), mtp.manifest.window)
    return Parts(head, SlmEngine(*bundles.open_slm(slm, simulator=simulator)), Clock())


def config_for(config: DecodeConfig, pair: Pair) -> DecodeConfig:
    """The configuration with the bundles' own bits, windows and keep sets.

    Raises UsageError for one that the native runner does not draft: it knows the hybrid drafter, head on the device.
    """
    if config.drafter != "hybrid" or config.mtp is None or config.slm is None or config.mtp.place != "device":
        raise UsageError(
            f"configuration {config.name} drafts with {config.drafter!r}; the native runner drafts `hybrid` with head "
            "and SLM on the device: take hyco, or a configuration made from it"
        )
    mtp, slm = pair.mtp.manifest, pair.slm.manifest
    head = {"window": mtp.window, "keep_set": mtp.keep_set.size, **({} if mtp.bits is None else {"bits": mtp.bits})}
    small = {"window": slm.window, "keep_set": slm.keep_set.size}
    return config.model_copy(
        update={"mtp": config.mtp.model_copy(update=head), "slm": config.slm.model_copy(update=small)}
    )


def require_fit(rounds: Rounds, pair: Pair) -> None:
    """Refuse rounds that the bundles cannot be asked.

    Raises BenchError: a head of other dimensions, tokens beyond the vocabulary, states of fewer rows than the window
    would show.
    """
    config, window = head_config(pair.mtp), pair.mtp.manifest.window
    for number, (committed, update) in enumerate(_committed(rounds)):
        _require_update(update, min(committed, window), config, f"{rounds.path}: reply {number}")
    vocabulary = min(bundle.manifest.keep_set.vocab_size for bundle in pair.bundles)
    tokens = {token for event in rounds.events if not isinstance(event, Draft) for token in event.emitted}
    tokens |= {token for event in rounds.events if isinstance(event, Begin) for token in event.token_ids}
    outside = [token for token in tokens if not 0 <= token < vocabulary]
    if outside:
        raise BenchError(f"{rounds.path}: token {max(outside)} is none of the bundles' {vocabulary}: {_FOREIGN}")


def host_trees(
    rounds: Rounds,
    pair: Pair,
    reference: Reference,
    limit: int | None = None,
) -> tuple[DraftedTree, ...]:
    """The trees that the Python drafter draws in the first `limit` rounds (None: all).

    Those that were kept at the recording are taken where they are of the same bundles and reference.
    """
    kept = None if rounds.made is None else rounds.made.trees
    if kept is not None and kept.identity == _identity(pair, reference):
        return kept.trees[:limit]
    parts, config = open_parts(pair, reference), config_for(rounds.config, pair)
    trees: list[DraftedTree] = []
    for tree in replay(rounds, lambda: build_drafter(config, parts)):
        trees.append(drafted(tree))
        if len(trees) == limit:
            break
    return tuple(trees)


def replay(rounds: Rounds, begin_text: Callable[[], Drafter]) -> Iterator[DraftTree]:
    """Lead a drafter along the rounds, a fresh one for each text; yields its tree of every round before the reply."""
    updates = rounds.updates()
    drafter, tree = begin_text(), DraftTree.root_only(0)
    started = False
    for event in rounds.events:
        if isinstance(event, Draft):
            tree = drafter.draft(event.max_depth)
            yield tree
            continue
        update = next(updates)
        if isinstance(event, Begin):
            if event.fresh and started:
                drafter = begin_text()
            started = True
            drafter.begin(event.token_ids, Reply((), event.emitted, False, update))
        else:
            drafter.commit(tree, Reply(tree.along(event.emitted), event.emitted, False, update))


def drafted(tree: DraftTree) -> DraftedTree:
    """The same tree as a measurement has it."""
    return DraftedTree(tree.token_ids, tree.parents, tree.scores, tree.sources)


def manifest_sha256(bundle: Bundle) -> str:
    """A bundle's identity: its manifest lists the hashes of all its files."""
    return hashlib.sha256((bundle.folder / MANIFEST_NAME).read_bytes()).hexdigest()


def described(pair: Pair) -> BundlePair:
    """The pair as a measurement names it."""
    return BundlePair(pair.label, pair.mtp.folder, pair.slm.folder, *map(manifest_sha256, pair.bundles))


def keep_trees(trees: Sequence[DraftTree], pair: Pair, reference: Reference) -> RecordedTrees:
    """Trees as a file of rounds keeps them, with what they are of."""
    return RecordedTrees(*_identity(pair, reference), tuple(map(drafted, trees)))


def _identity(pair: Pair, reference: Reference) -> tuple[str, str, str, str]:
    """A later version of the drafter may draw other trees."""
    mtp, slm = map(manifest_sha256, pair.bundles)
    return __version__, reference, mtp, slm


def _simulated(pair: Pair) -> bool:
    mtp, slm = pair.bundles
    assert slm.manifest.slm is not None
    draft = slm.graph(slm.manifest.slm.draft_graph)
    return all("context" in graph.files for graph in mtp.manifest.graphs) and "simulator_context" in draft.files


def _committed(rounds: Rounds) -> Iterator[tuple[int, HeadUpdate]]:
    """Rows that each reply committed, and its update: all tokens that came but the last, and the root before them."""
    updates = rounds.updates()
    for event in rounds.events:
        if isinstance(event, Begin):
            yield len(event.token_ids) + (not event.fresh), next(updates)
        elif not isinstance(event, Draft):
            yield len(event.emitted), next(updates)


def _require_update(update: HeadUpdate, rows: int, config: MtpConfig, what: str) -> None:
    width = config.backbone_hidden_size
    for name, array in (("hidden state", update.hidden), ("embedding", update.embedding)):
        if array.shape != (width,):
            raise BenchError(f"{what}: its {name} has {len(array)} values, the bundle's head takes {width}: {_FOREIGN}")
    for layer in config.layers:
        kind, wanted = kind_of_layer_type(layer.kind), (layer.num_key_value_heads, layer.head_dim)
        for part in (update.keys, update.values):
            shape = part[kind].shape if kind in part else (0, 0, 0)
            if (shape[0], shape[2]) != wanted:
                raise BenchError(
                    f"{what}: its {kind} rows are of {shape[0]} heads of {shape[2]}, the bundle's head takes "
                    f"{wanted[0]} of {wanted[1]}: {_FOREIGN}"
                )
            if shape[1] < rows:
                raise BenchError(
                    f"{what}: it has {shape[1]} {kind} rows where the bundle's window shows {rows}: the rounds were "
                    "recorded for a smaller window; record them again"
                )
