"""Drafting that keeps what it saw: every round's tree before the cut, and how sure each source was of every edge.

The drafters run as they are; two of their parts are replaced by ones that also remember the logits that they chose
candidates from. From a recorded round the tree can be scored and cut again at any temperature of TEMPERATURES.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from export.graphs.tree_feeds import softcapped
from hyco_npu.decode.config import AcceptanceSettings
from hyco_npu.decode.drafters.mtp import SOURCE as MTP
from hyco_npu.decode.drafters.mtp import HeadNodes, MtpCandidates
from hyco_npu.decode.drafters.passes import SOURCE as SLM
from hyco_npu.decode.drafters.registry import build_drafter
from hyco_npu.decode.drafters.slm import SlmRows
from hyco_npu.decode.models import Models
from hyco_npu.decode.session import GenerationOptions, Session
from hyco_npu.decode.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from export.mtp.chain import ChainStep
    from hyco_npu.decode.clock import Clock
    from hyco_npu.decode.config import DecodeConfig, MtpSettings
    from hyco_npu.decode.drafters.parts import MtpEngine, SlmEngine
    from hyco_npu.decode.drafters.slm import SlmTree
    from hyco_npu.decode.protocols import Drafter, Reply
    from hyco_npu.decode.scores import Candidate, SourceScore
    from hyco_npu.decode.tree import DraftTree, GrowingTree

TEMPERATURES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Temperatures whose normalisers are recorded, besides the configuration's own."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Of one source in one round: `logits` float32 [rows], NaN where it did not draft the row's token; `norms` float32
    [rows, temperatures]: log-sum-exp of logits / temperature over the logits that the token was chosen from."""

    logits: np.ndarray
    norms: np.ndarray


@dataclass(frozen=True, eq=False)
class RecordedRound:
    """A round before its cut. `tree`: all drafted nodes; `always`: its rows that are kept whatever they score.

    `true_rows`: the path in it that the verifier's text took. `truth`: of rows on that path, root included, the logit
    of the true next token and the row's norms, by source; a token outside the keep set has none.
    """

    tree: DraftTree
    always: tuple[int, ...]
    true_rows: tuple[int, ...]
    edges: dict[str, Edges]
    truth: dict[str, list[tuple[np.float32, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class _Seen:
    """The logits [columns] that a node's children were chosen from; `token_ids` maps columns, rising."""

    node: int
    source: str
    logits: np.ndarray
    token_ids: np.ndarray


@dataclass(eq=False)
class Recorder:
    """What the drafters of one round show; `begin` forgets the round before."""

    tree: GrowingTree | None = None
    seen: list[_Seen] = field(default_factory=list)
    chain: tuple[int, ...] = ()

    def begin(self) -> None:
        """A new round."""
        self.tree, self.seen, self.chain = None, [], ()

    def add(self, tree: GrowingTree, seen: _Seen) -> None:
        """A node's children were chosen."""
        self.tree = tree
        self.seen.append(seen)


class _RecordedHead(MtpCandidates):
    """The head's candidates, remembered. One more parameter in front than its base."""

    def __init__(
        self, recorder: Recorder, engine: MtpEngine, settings: MtpSettings, score: SourceScore, clock: Clock
    ) -> None:
        super().__init__(engine, settings, score, clock)
        self._recorder = recorder

    def _add(self, tree: GrowingTree, run: list[ChainStep]) -> HeadNodes:
        nodes = super()._add(tree, run)
        for node, step in zip((ROOT, *nodes.chain), run, strict=False):
            self._recorder.add(tree, _Seen(node, MTP, step.logits, self._engine.chain.token_ids))
        self._recorder.chain = nodes.chain
        return nodes


class _RecordedRows(SlmRows):
    """The SLM's candidates, remembered."""

    def __init__(self, recorder: Recorder, engine: SlmEngine, children: int, score: SourceScore, clock: Clock) -> None:
        super().__init__(engine, children, score, clock)
        self._recorder = recorder
        self._newest = np.empty((0, 0), np.float32)

    def expand(self, grown: SlmTree, nodes: Sequence[int]) -> list[list[Candidate]]:
        candidates = super().expand(grown, nodes)
        cap = self._engine.model.config.final_logit_softcapping
        for node, row in zip(nodes, self._newest, strict=True):
            self._recorder.add(grown.tree, _Seen(node, SLM, softcapped(row, cap), self._engine.token_ids))
        return candidates

    def _likeliest(self, logits: np.ndarray) -> list[list[Candidate]]:
        self._newest = logits
        return super()._likeliest(logits)


@dataclass(frozen=True, eq=False)
class _Draft:
    """A round: how many tokens were emitted before it, its whole tree, its rows always kept, what was seen."""

    start: int
    tree: DraftTree
    always: tuple[int, ...]
    seen: dict[tuple[int, str], _Seen]


class RecordingDrafter:
    """A drafter whose rounds are remembered; `rounds` tells them once the text has ended."""

    def __init__(self, drafter: Drafter, recorder: Recorder, config: DecodeConfig) -> None:
        self._drafter, self._recorder, self._config = drafter, recorder, config
        self._emitted: list[int] = []
        self._drafts: list[_Draft] = []
        self.sent: list[DraftTree] = []

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """As the drafter does."""
        self._emitted += reply.emitted
        self._drafter.begin(token_ids, reply)

    def draft(self, max_depth: int) -> DraftTree:
        """As the drafter does."""
        self._recorder.begin()
        cut = self._drafter.draft(max_depth)
        self.sent.append(cut)
        tree, seen = self._recorder.tree, self._recorder.seen
        if tree is not None:
            whole = tree.trim(len(tree), max_depth)
            row_of = {node: row for row, node in enumerate(whole.nodes)}
            chain = self._recorder.chain if self._config.tree.keep_chain else ()
            always = tuple(row_of[node] for node in chain)
            by_row = {(row_of[one.node], one.source): one for one in seen if one.node in row_of}
            self._drafts.append(_Draft(len(self._emitted), whole.tree, always, by_row))
        return cut

    def while_waiting(self) -> None:
        """Nothing: drafting ahead would begin a round's tree outside the round."""

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """As the drafter does."""
        self._emitted += reply.emitted
        self._drafter.commit(tree, reply)

    def rounds(self, temperatures: Sequence[float]) -> list[RecordedRound]:
        """All rounds that drafted, against the text as it went on."""
        return [_recorded(draft, self._emitted[draft.start :], temperatures) for draft in self._drafts]


class RecordingModels(Models):
    """Models whose drafters remember; `newest` is the last one made."""

    newest: RecordingDrafter

    def drafter(self, config: DecodeConfig) -> RecordingDrafter:
        """As the base's, recorded."""
        recorder = Recorder()
        head, rows = partial(_RecordedHead, recorder), partial(_RecordedRows, recorder)
        parts = replace(self.parts(config), head=head, rows=rows)
        self.newest = RecordingDrafter(build_drafter(config, parts), recorder, config)
        return self.newest


def recorded_temperatures(config: DecodeConfig) -> tuple[float, ...]:
    """TEMPERATURES and those that the configuration has."""
    return tuple(sorted({*TEMPERATURES, *(config.score_of(source).temperature for source in ("mtp", "slm"))}))


def record_text(
    models: RecordingModels, config: DecodeConfig, token_ids: Sequence[int], max_new_tokens: int
) -> list[RecordedRound]:
    """Decode a text greedily under the exact rule, as the verifier alone would write it; all rounds that drafted."""
    exact = config.model_copy(update={"acceptance": AcceptanceSettings()})
    for _ in Session(models, exact, GenerationOptions(max_new_tokens)).generate(token_ids):
        pass
    return models.newest.rounds(recorded_temperatures(config))


def log_norms(logits: np.ndarray, temperatures: Sequence[float]) -> np.ndarray:
    """Log-sum-exp of logits [columns] at each temperature, in the arithmetic of scores.best_candidates."""
    norms = []
    for temperature in temperatures:
        scaled = logits[None] / temperature
        top = scaled.max(axis=1, keepdims=True)
        norms.append((top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1)))[0])
    return np.array(norms, np.float32)


def _recorded(draft: _Draft, text: Sequence[int], temperatures: Sequence[float]) -> RecordedRound:
    tree = draft.tree
    norms = {place: log_norms(seen.logits, temperatures) for place, seen in draft.seen.items()}
    edges: dict[str, Edges] = {}
    for source in sorted({source for _, source in draft.seen}):
        found = Edges(np.full(tree.rows, np.nan, np.float32), np.zeros((tree.rows, len(temperatures)), np.float32))
        for row in range(1, tree.rows):
            parent = tree.parents[row]
            if parent is not None and source in tree.sources[row].split("+"):
                logit = _logit(draft.seen[parent, source], tree.token_ids[row])
                assert logit is not None  # a source drafts what its columns hold
                found.logits[row], found.norms[row] = logit, norms[parent, source]
        edges[source] = found
    path = tree.along(text)
    truth: dict[str, list[tuple[np.float32, np.ndarray]]] = {source: [] for source in edges}
    for row, token in zip((ROOT, *path), text, strict=False):
        for source in edges:
            seen = draft.seen.get((row, source))
            if seen is not None and (logit := _logit(seen, token)) is not None:
                truth[source].append((logit, norms[row, source]))
    return RecordedRound(tree, draft.always, path, edges, truth)


def _logit(seen: _Seen, token_id: int) -> np.float32 | None:
    column = int(np.searchsorted(seen.token_ids, token_id))
    if column == len(seen.token_ids) or seen.token_ids[column] != token_id:
        return None
    logit: np.float32 = seen.logits[column]
    return logit
