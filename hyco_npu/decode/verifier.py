"""The server's verifier: a transformers model that many texts share, and what it holds of each.

A text's rows are those of its tokens but the last emitted one, which is the root of the next tree. The MTP head, where
the model has one, is handed rows that were committed and no others. Acceptance is target.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from calibration.states import kind_of_layer_type
from export.graphs.tree_feeds import RowTree
from hyco_npu.decode.errors import DecodeError
from hyco_npu.decode.protocols import HeadUpdate
from hyco_npu.decode.row_cache import RowCache
from hyco_npu.decode.tree import ROOT
from hyco_npu.decode.tree_forward import Piece, TreeForward

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from transformers import PreTrainedModel

    from hyco_npu.decode.tree import DraftTree
    from hyco_npu.decode.tree_forward import PieceOutput

_PREFILL_ROWS = 512


@dataclass(frozen=True)
class VerifierOptions:
    """window: an update of the head holds the last `window` rows at most; None: all that were committed.

    prefill_rows: rows of a prompt that run in one pass, which bounds the size of its masks.
    """

    window: int | None = None
    prefill_rows: int = _PREFILL_ROWS

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("prefill_rows", self.prefill_rows)):
            if value is not None and value < 1:
                raise DecodeError(f"{name} of a verifier is {value}; it must be 1 or more")


class VerifierModel:
    """A causal language model as verifier of any number of texts, one at a time or several in one forward pass.

    A `Gemma4ForCausalLM` updates its MTP head; other models have none. `stop_ids` are those that the generation config
    names (an id, a list or none); `max_positions` is the config's.
    """

    def __init__(self, model: PreTrainedModel, options: VerifierOptions | None = None) -> None:
        self.forward = TreeForward(model)
        self.head_layers = _head_layers(self.forward) if self.forward.has_head else {}
        self.options = options or VerifierOptions()
        self.stop_ids = _stop_ids(model)
        self.max_positions: int | None = getattr(self.forward.config, "max_position_embeddings", None)

    def begin(self) -> TextVerifier:
        """A new, empty text."""
        return TextVerifier(self)

    def verify_batch(self, texts: Sequence[TextVerifier], trees: Sequence[DraftTree]) -> list[np.ndarray]:
        """`TextVerifier.verify` of several texts in one forward pass: logits [rows, vocabulary] of each."""
        self._check(texts, trees)
        pieces = [text.open_tree(tree) for text, tree in zip(texts, trees, strict=True)]
        outputs = self.forward.run(pieces, last_only=False) if pieces else []
        for text, tree, output in zip(texts, trees, outputs, strict=True):
            text.took(output, tree)
        return [output.logits for output in outputs]

    def prefill_batch(self, texts: Sequence[TextVerifier], prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """`TextVerifier.prefill` of several texts, `prefill_rows` rows at a time: logits [1, vocabulary] of each."""
        self._check(texts, prompts)
        tokens = [text.open_prompt(prompt) for text, prompt in zip(texts, prompts, strict=True)]
        outputs: dict[int, PieceOutput] = {}
        step = self.options.prefill_rows
        for start in range(0, max(map(len, tokens), default=0), step):
            running = [number for number, ids in enumerate(tokens) if start < len(ids)]
            chunks = [tokens[number][start : start + step] for number in running]
            pieces = [
                Piece(texts[n].cache, ids, RowTree.chain(len(ids))) for n, ids in zip(running, chunks, strict=True)
            ]
            outputs |= zip(running, self.forward.run(pieces, last_only=True), strict=True)
        for number, text in enumerate(texts):
            text.took(outputs[number], None)
        return [outputs[number].logits for number in range(len(texts))]

    def _check(self, texts: Sequence[TextVerifier], inputs: Sequence[object]) -> None:
        if len(texts) != len(inputs):
            raise DecodeError(f"{len(texts)} texts and {len(inputs)} inputs: a batch has one input for every text")
        if len(set(map(id, texts))) != len(texts) or any(text.owner is not self for text in texts):
            raise DecodeError(
                "a batch holds different texts that its own verifier began; one is there twice or foreign"
            )


@dataclass(frozen=True, eq=False)
class _Pass:
    """What a forward left for the commit: tree (None: a prompt), hidden [rows whose outputs were kept, hidden_size]."""

    tree: DraftTree | None
    hidden: torch.Tensor | None


class TextVerifier:
    """One text: protocols.Verifier. A pass that was not committed is forgotten by the next."""

    def __init__(self, owner: VerifierModel) -> None:
        self.owner = owner
        self.cache = RowCache()
        self._last: int | None = None
        self._pass: _Pass | None = None

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        return self.owner.stop_ids

    @property
    def max_positions(self) -> int | None:
        """Longest text in tokens; None where the model names no limit."""
        return self.owner.max_positions

    @property
    def length(self) -> int:
        """Tokens of the text so far, the last emitted one included."""
        return self.cache.committed + (self._last is not None)

    def prefill(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits [1, vocabulary] of the last of `token_ids`: a prompt, or a further turn behind the last emitted token.

        Raises DecodeError where nothing is given.
        """
        return self.owner.prefill_batch([self], [token_ids])[0]

    def verify(self, tree: DraftTree) -> np.ndarray:
        """Logits [rows, vocabulary], float32, of every row given the text and its ancestors.

        Raises DecodeError before a prompt was committed, and for a root that is not the last emitted token.
        """
        return self.owner.verify_batch([self], [tree])[0]

    @torch.inference_mode()
    def commit(self, rows: Sequence[int], next_token: int) -> HeadUpdate | None:
        """Keep the root and `rows` (a path) of the last pass, or a prompt whole; the update is of the rows kept.

        Raises DecodeError without a pass and for rows that are no path from the root.
        """
        taken = self._pass
        if taken is None:
            raise DecodeError("there is no pass to commit; verify a tree or prefill a prompt first")
        path = () if taken.tree is None or not rows else taken.tree.path(rows[-1])
        if tuple(rows) != path:
            raise DecodeError(f"rows {tuple(rows)} are no path from the tree's root; the path to the last is {path}")
        before = self.cache.committed
        self.cache.keep(range(self.cache.filled - before) if taken.tree is None else (ROOT, *rows))
        self._pass, self._last = None, next_token
        if taken.hidden is None:
            return None
        return self._update(before, taken.hidden[rows[-1] if rows else ROOT], next_token)

    def open_tree(self, tree: DraftTree) -> Piece:
        """Begin a pass over a tree; for VerifierModel."""
        if self._last != tree.token_ids[ROOT]:
            raise DecodeError(f"the tree's root is token {tree.token_ids[ROOT]}, the last one emitted is {self._last}")
        self._open()
        return Piece(self.cache, tree.token_ids, tree.row_tree)

    def open_prompt(self, token_ids: Sequence[int]) -> list[int]:
        """Begin a pass over a prompt or a further turn; the tokens to run. For VerifierModel."""
        if len(token_ids) == 0:
            raise DecodeError("there is nothing to prefill: 0 tokens were given")
        self._open()
        return [*([] if self._last is None else [self._last]), *token_ids]

    def took(self, output: PieceOutput, tree: DraftTree | None) -> None:
        """End the pass that was begun last; for VerifierModel."""
        self._pass = _Pass(tree, output.hidden)

    def _open(self) -> None:
        self._pass = None
        self.cache.drop()

    def _update(self, before: int, hidden: torch.Tensor, next_token: int) -> HeadUpdate:
        stop, window = self.cache.committed, self.owner.options.window
        start = before if window is None else max(before, stop - window)
        rows = {kind: self.cache.rows(layer, start, stop) for kind, layer in self.owner.head_layers.items()}
        return HeadUpdate(
            hidden=_array(hidden),
            embedding=_array(self.owner.forward.embedding(next_token)),
            keys={kind: _array(keys) for kind, (keys, _) in rows.items()},
            values={kind: _array(values) for kind, (_, values) in rows.items()},
        )


def _head_layers(forward: TreeForward) -> dict[str, int]:
    """Kind -> the last layer of that kind with keys and values of its own, which the head attends to."""
    owners = len(forward.layer_types) - forward.config.num_kv_shared_layers
    return {kind_of_layer_type(kind): layer for layer, kind in enumerate(forward.layer_types[:owners])}


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A float32 copy: a view would keep the cache's whole buffer alive."""
    array: np.ndarray = tensor.to(device="cpu", dtype=torch.float32, copy=True).numpy()
    return array


def _stop_ids(model: PreTrainedModel) -> frozenset[int]:
    named = getattr(model.generation_config, "eos_token_id", None)
    if named is None:
        return frozenset()
    return frozenset(map(int, named if isinstance(named, (list, tuple)) else [named]))
