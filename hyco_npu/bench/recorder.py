"""Recording rounds: the verifier writes texts, greedily, while the host's drafter drafts for it.

Accepted is exactly what the verifier would write, so the text does not depend on the drafts and any other drafter can
be asked the same rounds (hyco_npu.bench.rounds).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calibration.prompts import encode_prompt, read_prompt_file
from export.mtp.check import head_config
from hyco_npu.bench.errors import BenchError
from hyco_npu.bench.host import config_for, keep_trees, open_parts
from hyco_npu.bench.rounds import Begin, Commit, Draft, Made, write_rounds
from hyco_npu.decode.acceptance import Exact
from hyco_npu.decode.config import AcceptanceSettings
from hyco_npu.decode.drafters.registry import build_drafter
from hyco_npu.decode.loop import decode
from hyco_npu.decode.models import ModelPaths, Models
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.target import Target
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from device_runner.staging import Pair
    from hyco_npu.bench.rounds import Event, Rounds
    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.protocols import Drafter, HeadUpdate, Reply, Verifier
    from hyco_npu.decode.tree import DraftTree


@dataclass(frozen=True)
class RecordingOptions:
    """A verifier's folder, a file of prompts, how many of them, and how long an answer may become, in tokens."""

    verifier: Path
    prompts: Path
    texts: int = 8
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        if self.texts < 1 or self.max_new_tokens < 3:
            raise UsageError(
                f"{self.texts} texts of {self.max_new_tokens} tokens hold no rounds: record at least 1 text of 3 tokens"
            )


@dataclass(eq=False)
class RoundsRecorder:
    """What drafters of several texts were asked and told."""

    events: list[Event] = field(default_factory=list)
    updates: list[HeadUpdate] = field(default_factory=list)
    trees: list[DraftTree] = field(default_factory=list)
    texts: int = 0

    def text(self, verifier: Verifier, drafter: Drafter, token_ids: Sequence[int], max_new_tokens: int) -> bool:
        """Decode a text and keep its rounds; False (and nothing kept) for one that ended before its first."""
        one = _TextRecorder(drafter, self.texts, len(self.updates))
        for _ in decode(Target(verifier, Exact(Sampling())), one, token_ids, max_new_tokens):
            pass
        if not one.trees:
            return False
        self.events += one.with_truth()
        self.updates += one.updates
        self.trees += one.trees
        self.texts += 1
        return True


class _TextRecorder:
    """A drafter whose one text is written down."""

    def __init__(self, drafter: Drafter, text: int, first_update: int) -> None:
        self._drafter, self._text, self._first = drafter, text, first_update
        self._events: list[Event] = []
        self._emitted: list[int] = []
        self._starts: list[int] = []
        self.updates: list[HeadUpdate] = []
        self.trees: list[DraftTree] = []

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """As the drafter does."""
        self._drafter.begin(token_ids, reply)
        update = self._took(reply)
        self._events.append(
            Begin(text=self._text, fresh=True, token_ids=tuple(token_ids), emitted=reply.emitted, update=update)
        )

    def draft(self, max_depth: int) -> DraftTree:
        """As the drafter does."""
        tree = self._drafter.draft(max_depth)
        self._starts.append(len(self._emitted))
        self._events.append(Draft(max_depth=max_depth))
        self.trees.append(tree)
        return tree

    def while_waiting(self) -> None:
        """Nothing: the native runner does not draft ahead."""

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """As the drafter does; a last token that no draft was asked for is no round."""
        self._drafter.commit(tree, reply)
        if isinstance(self._events[-1], Draft):
            update = self._took(reply)
            self._events.append(Commit(accepted=reply.accepted, emitted=reply.emitted, update=update))
        else:
            self._emitted += reply.emitted

    def with_truth(self) -> list[Event]:
        """The events, each draft with the tokens that follow it: as many as a path of any tree here could hold."""
        events, starts = [], iter(self._starts)
        longest = max(tree.nodes for tree in self.trees)
        for event in self._events:
            if isinstance(event, Draft):
                start = next(starts)
                truth = tuple(self._emitted[start : start + min(event.max_depth, longest)])
                event = event.model_copy(update={"truth": truth})
            events.append(event)
        return events

    def _took(self, reply: Reply) -> int:
        if reply.update is None:
            raise BenchError("the verifier hands out no state for a head; rounds need a Gemma 4 verifier")
        self._emitted += reply.emitted
        self.updates.append(reply.update)
        return self._first + len(self.updates) - 1


def record_rounds(
    out: Path, config: DecodeConfig, pair: Pair, options: RecordingOptions, progress: Callable[[str], None]
) -> Rounds:
    """Record the first prompts' answers into `out`; the drafter runs the pair's quantised graphs on the CPU.

    Raises:
        UsageError: a configuration that the native runner does not draft.
        BenchError: a verifier that the bundles were not made for, or answers of one token all through.
        PromptFileError, CheckpointError: prompts or a verifier that cannot be read.
    """
    exact = config_for(config, pair).model_copy(update={"acceptance": AcceptanceSettings()})
    file = read_prompt_file(options.prompts)
    models = Models(ModelPaths(verifier=options.verifier))
    _require_verifier(models, pair)
    parts, recorder, ids = open_parts(pair, "cpu"), RoundsRecorder(), []
    for number, prompt in enumerate(file.prompts[: options.texts]):
        progress(f"recording text {number + 1} of {min(options.texts, len(file.prompts))}")
        tokens = encode_prompt(models.tokenizer, prompt)
        drafter = build_drafter(exact, parts)
        if recorder.text(models.verifier.begin(), drafter, tokens, options.max_new_tokens):
            ids.append(prompt.id)
    if not recorder.trees:
        raise BenchError(f"the verifier ended all of its answers to {file.name} at once: there is no round to measure")
    trees = keep_trees(recorder.trees, pair, "cpu")
    made = Made(options.verifier.resolve().name, file.name, file.sha256, tuple(ids), trees)
    return write_rounds(out, exact, recorder.events, recorder.updates, made)


def _require_verifier(models: Models, pair: Pair) -> None:
    config, head = models.verifier.forward.config, head_config(pair.mtp)
    for bundle in pair.bundles:
        if bundle.manifest.keep_set.vocab_size != config.vocab_size:
            raise BenchError(
                f"the verifier has {config.vocab_size} tokens, {bundle.folder} is for one of "
                f"{bundle.manifest.keep_set.vocab_size}: give the verifier that it was made for (--verifier)"
            )
    if head.backbone_hidden_size != config.hidden_size:
        raise BenchError(
            f"the verifier's states have {config.hidden_size} values, the head of {pair.mtp.folder} takes "
            f"{head.backbone_hidden_size}: give the verifier that it was made for (--verifier)"
        )
