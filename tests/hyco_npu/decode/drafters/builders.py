"""Tiny drafters on float engines, a text with the verifier's rows made up, and replies that accept any path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibration.states import HeadState
from export.graphs.feeds import FeedBuilder
from export.graphs.mtp import KINDS, layer_of_kind
from export.graphs.slm import SlmInputs
from export.mtp.chain import MtpChain
from export.slm.runner import SlmModel, SlmText
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.config import DecodeConfig, parse_config
from hyco_npu.decode.drafters.registry import MtpEngine, Parts, SlmEngine, build_drafter
from hyco_npu.decode.protocols import HeadUpdate, Reply
from tests.export.tiny import BACKBONE, TinyHead
from tests.export.tiny_slm import VOCAB_SIZE, TinySlm, token_inputs, torch_runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from export.engines.graph_io import Feed
    from hyco_npu.decode.protocols import Drafter
    from hyco_npu.decode.tree import DraftTree

SLM_KEEP = np.array([token for token in range(VOCAB_SIZE) if token % 4])
HEAD_KEEP = np.array([token for token in range(VOCAB_SIZE) if token % 3])
"""Each drafter has a vocabulary of its own; a bonus token may lie outside both."""
SLM_TEMPERATURE, HEAD_TEMPERATURE = 0.3, 0.2
"""Random models are in doubt; at these temperatures their trees are as deep as those of trained ones."""
DRAFT_ROWS, PREFILL_ROWS, WINDOW = 9, 5, 64
LONGEST = 200


class SlmGraph:
    """The static module over the kept tokens; `passes` holds how many rows of each pass were no padding."""

    def __init__(self, tiny: TinySlm, rows: int, window: int) -> None:
        inputs = SlmInputs(tiny.config, rows, window)
        self.inputs = tuple(inputs.shapes())
        self.passes: list[int] = []
        self._run = torch_runner(tiny.slm, inputs)

    def run(self, feed: Feed) -> Feed:
        self.passes.append(int(feed["embedding"].any(axis=-1).sum()))
        result = self._run(feed)
        # Two chunks, as a graph with a large keep set has.
        logits = result.pop("logits")[..., SLM_KEEP]
        return {**result, "logits_0": logits[..., :20], "logits_1": logits[..., 20:]}


@dataclass(frozen=True)
class TinyTables:
    """transformers' own tables."""

    tiny: TinySlm

    def rows(self, token_ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return token_inputs(self.tiny, token_ids)


@dataclass(frozen=True)
class WatchedSlm(SlmModel):
    """Remembers its texts."""

    texts: list[SlmText] = field(default_factory=list)

    def begin(self) -> SlmText:
        self.texts.append(super().begin())
        return self.texts[-1]


def slm_engine(tiny: TinySlm, draft_rows: int = DRAFT_ROWS, window: int = WINDOW) -> SlmEngine:
    tables: Any = TinyTables(tiny)
    draft, prefill = (SlmGraph(tiny, rows, window) for rows in (draft_rows, PREFILL_ROWS))
    model = WatchedSlm(tiny.config, tables, draft, draft_rows, prefill, PREFILL_ROWS, window, "float32")
    return SlmEngine(model, SLM_KEEP)


def draft_passes(engine: SlmEngine | None) -> list[int]:
    """Rows of each pass of the draft graph."""
    assert engine is not None
    assert isinstance(engine.model.draft, SlmGraph)
    return engine.model.draft.passes


def prefill_passes(engine: SlmEngine | None) -> list[int]:
    """Rows of each pass of the prefill graph."""
    assert engine is not None
    assert isinstance(engine.model.prefill, SlmGraph)
    return engine.model.prefill.passes


def text_of(engine: SlmEngine | None) -> SlmText:
    """The engine's only text."""
    assert engine is not None
    assert isinstance(engine.model, WatchedSlm)
    (text,) = engine.model.texts
    return text


class HeadGraph:
    """The head's static module over the kept tokens; keeps its feeds."""

    def __init__(self, tiny: TinyHead) -> None:
        self._head = tiny.head
        self.feeds: list[Feed] = []

    def run(self, feed: Feed) -> Feed:
        self.feeds.append(feed)
        with torch.no_grad():
            hidden, logits = self._head(**{name: torch.from_numpy(array) for name, array in feed.items()})
        return {"next_hidden": hidden.numpy(), "logits_0": logits.numpy()[..., HEAD_KEEP]}


def head_engine(tiny: TinyHead, window: int | None = 8) -> MtpEngine:
    feeds = FeedBuilder(tiny.config, 1 if window is None else window)
    return MtpEngine(MtpChain(feeds, HEAD_KEEP, embedding), HeadGraph(tiny), window)


def head_feeds(engine: MtpEngine | None) -> list[Feed]:
    """What each step was fed."""
    assert engine is not None
    assert isinstance(engine.graph, HeadGraph)
    return engine.graph.feeds


def embedding(token_id: int) -> np.ndarray:
    """A stand-in for the verifier's embedding table."""
    return np.random.default_rng(token_id).standard_normal(BACKBONE).astype(np.float32)


def head_rows(tiny: TinyHead) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The verifier's keys and values [heads, LONGEST, head_dim] by kind, made up; a row's follow from its position."""
    rng = np.random.default_rng(77)
    rows = {}
    for kind in KINDS:
        layer = layer_of_kind(tiny.config, kind)
        shape = (2, layer.num_key_value_heads, LONGEST, layer.head_dim)
        rows[kind] = tuple(rng.standard_normal(shape).astype(np.float32))
    return rows


def hidden_at(position: int) -> np.ndarray:
    """The verifier's hidden state at a row, made up."""
    return np.random.default_rng(1000 + position).standard_normal(BACKBONE).astype(np.float32)


@dataclass
class Text:
    """A text and its verifier's answers: `tokens` with the last one as the next root, `verified` rows handed out."""

    head: TinyHead | None
    tokens: list[int] = field(default_factory=list)
    verified: int = 0

    def begin(self, drafter: Drafter, prompt: Sequence[int], first: int) -> None:
        """The prompt, or a further turn, and its first token."""
        self.tokens += [*prompt, first]
        drafter.begin(prompt, Reply((), (first,), False, self.update()))

    def answer(self, drafter: Drafter, tree: DraftTree, rows: Sequence[int], bonus: int | None) -> None:
        """Accept a path of the tree; without a bonus the text ends on it."""
        emitted = [tree.token_ids[row] for row in rows] + ([] if bonus is None else [bonus])
        self.tokens += emitted
        drafter.commit(tree, Reply(tuple(rows), tuple(emitted), bonus is None, self.update()))

    def update(self) -> HeadUpdate | None:
        start, self.verified = self.verified, len(self.tokens) - 1
        if self.head is None:
            return None
        new = {kind: [part[:, start : self.verified] for part in pair] for kind, pair in head_rows(self.head).items()}
        return HeadUpdate(
            hidden=hidden_at(self.verified - 1),
            embedding=embedding(self.tokens[-1]),
            keys={kind: keys for kind, (keys, _) in new.items()},
            values={kind: values for kind, (_, values) in new.items()},
        )

    def state(self) -> HeadState:
        """What the head must be fed, cut out of all rows."""
        position = len(self.tokens) - 1
        rows = {kind: [part[:, :position] for part in pair] for kind, pair in head_rows(self._head()).items()}
        return HeadState(
            token_id=self.tokens[-1],
            position=position,
            embedding=embedding(self.tokens[-1]),
            hidden=hidden_at(position - 1),
            keys={kind: keys for kind, (keys, _) in rows.items()},
            values={kind: values for kind, (_, values) in rows.items()},
        )

    def _head(self) -> TinyHead:
        assert self.head is not None
        return self.head


def config_of(drafter: str, nodes: int = 8, keep_chain: bool = True, **sections: Any) -> DecodeConfig:
    tree = {"nodes": nodes, "keep_chain": keep_chain}
    scores = {"mtp": {"temperature": HEAD_TEMPERATURE}, "slm": {"temperature": SLM_TEMPERATURE}}
    return parse_config({"name": "test", "drafter": drafter, "tree": tree, "scores": scores, **sections}, "test")


@dataclass
class Sides:
    """What a drafter runs on, and the drafter."""

    config: DecodeConfig
    head: TinyHead | None = None
    slm: TinySlm | None = None
    draft_rows: int = DRAFT_ROWS
    window: int = WINDOW

    def __post_init__(self) -> None:
        self.text, self.clock = Text(self.head), Clock()
        self.mtp_engine = None if self.head is None else head_engine(self.head)
        self.slm_engine = None if self.slm is None else slm_engine(self.slm, self.draft_rows, self.window)
        self.drafter = build_drafter(self.config, Parts(self.mtp_engine, self.slm_engine, self.clock))

    def fresh(self) -> Sides:
        """The same, begun with this one's text as its prompt."""
        other = Sides(self.config, self.head, self.slm, self.draft_rows, self.window)
        other.text.begin(other.drafter, self.text.tokens[:-1], self.text.tokens[-1])
        return other

    def begin(self, prompt: Sequence[int], first: int) -> None:
        self.text.begin(self.drafter, prompt, first)

    def answer(self, tree: DraftTree, rows: Sequence[int], bonus: int | None) -> None:
        self.text.answer(self.drafter, tree, rows, bonus)


def prompt_of(length: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(VOCAB_SIZE, size=length)]


def other_token(tree: DraftTree, row: int, seed: int = 0) -> int:
    """A token that does not stand behind `row`: a bonus."""
    taken = {tree.token_ids[child] for child in tree.children(row)}
    return int(np.random.default_rng(seed).choice([t for t in range(VOCAB_SIZE) if t not in taken]))


def random_path(tree: DraftTree, rng: np.random.Generator) -> tuple[int, ...]:
    """The path to any row; short and long ones are as likely."""
    depth = int(rng.integers(max(tree.depths) + 1))
    return tree.path(int(rng.choice([row for row, at in enumerate(tree.depths) if at == depth])))


def paths_of(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Tokens from the root down -> score, of every row but the root."""
    return {tuple(tree.token_ids[row] for row in tree.path(place)): tree.scores[place] for place in range(1, tree.rows)}


def assert_sound(tree: DraftTree, nodes: int, max_depth: int) -> None:
    """Limits; and no child ranks above its parent. That siblings differ and parents exist DraftTree itself checks."""
    assert tree.nodes <= nodes
    assert max(tree.depths) <= max_depth
    assert len(paths_of(tree)) == tree.nodes
    for row, parent in enumerate(tree.parents):
        assert parent is None or tree.scores[row] <= tree.scores[parent]


def assert_same_tree(found: DraftTree, expected: DraftTree) -> None:
    ours, theirs = paths_of(found), paths_of(expected)
    assert ours.keys() == theirs.keys()
    assert found.token_ids[0] == expected.token_ids[0]
    np.testing.assert_allclose([ours[path] for path in ours], [theirs[path] for path in ours], atol=1e-4)
