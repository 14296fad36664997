"""Texts of the verifier and its states on them, as rows that a head can be run on many at a time.

Row t of a text is what the head gets in the round that begins when token t is known: the hidden state of row t-1, the
embedding of token t, and the keys of the rows before t, of those the last `window` (on sliding layers of the head's own
window). Chain step s takes token t+s-1 and predicts token t+s. Only rows of the answer exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from calibration.states import kind_of_layer_type
from export.graphs.mtp import KINDS, layer_of_kind
from export.graphs.rope import inverse_frequencies, signed_rotation
from export.mtp.chain import CHAIN_LENGTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Gemma4ForCausalLM

    from export.checkpoint.mtp import MtpConfig
    from hyco_npu.family.corpus import Document


@dataclass(frozen=True)
class Recorded:
    """The verifier on one text: ids [length], hidden and embeddings [length, backbone], keys and values by kind.

    keys and values [kv_heads, length, head_dim]; the hidden states are those after the final norm.
    """

    ids: torch.Tensor
    prompt_length: int
    hidden: torch.Tensor
    embeddings: torch.Tensor
    keys: dict[str, torch.Tensor]
    values: dict[str, torch.Tensor]

    @property
    def rows(self) -> torch.Tensor:
        """The rows that predict a token of the answer: from its first token, which is given, to the last but one."""
        return torch.arange(self.prompt_length, len(self.ids) - 1)


@dataclass(frozen=True)
class RowBatch:
    """Inputs of a chain for `rows` rows of each of `batch` texts.

    contexts: keyword arguments of the step graph but its embedding and hidden state. embeddings: of the tokens that
    steps 1..K take, each [batch, 1, rows, backbone]. hidden [batch, 1, rows, backbone]. counted [K, batch, rows]: the
    step predicts a token of the text. positions [batch, rows]: t of every row (padding repeats the last one).
    """

    contexts: dict[str, torch.Tensor]
    embeddings: list[torch.Tensor]
    hidden: torch.Tensor
    counted: torch.Tensor
    positions: torch.Tensor

    @property
    def count(self) -> int:
        """Predictions that count, over all steps."""
        return int(self.counted.sum())

    def to(self, device: torch.device) -> RowBatch:
        """The batch on `device`."""
        return RowBatch(
            {name: tensor.to(device) for name, tensor in self.contexts.items()},
            [tensor.to(device) for tensor in self.embeddings],
            self.hidden.to(device),
            self.counted.to(device),
            self.positions,
        )


class RowBuilder:
    """Cuts row batches for one head out of recorded texts."""

    def __init__(self, config: MtpConfig, window: int) -> None:
        self._config, self._window = config, window
        self._rotations: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def batch(self, texts: Sequence[Recorded], rows: Sequence[torch.Tensor]) -> RowBatch:
        """The given `rows` (ascending positions, at least one each) of every text, padded to one number."""
        widest = max(map(len, rows))
        positions = torch.stack([F.pad(r, (0, widest - len(r)), value=int(r[-1])) for r in rows])
        real = torch.arange(widest)[None] < torch.tensor([len(r) for r in rows])[:, None]
        lengths = torch.tensor([len(text.ids) for text in texts])
        taken = [positions + step for step in range(CHAIN_LENGTH)]
        counted = torch.stack([real & (token + 1 < lengths[:, None]) for token in taken])
        contexts: dict[str, torch.Tensor] = {}
        for kind in KINDS:
            contexts |= self._context(kind, texts, positions)
        return RowBatch(
            contexts,
            [_picked([t.embeddings for t in texts], token.clamp(max=lengths[:, None] - 1)) for token in taken],
            _picked([t.hidden for t in texts], positions - 1),
            counted,
            positions,
        )

    def _context(self, kind: str, texts: Sequence[Recorded], positions: torch.Tensor) -> dict[str, torch.Tensor]:
        longest = int(positions.max())
        keys = torch.stack([_fitted(text.keys[kind], longest) for text in texts])
        values = torch.stack([_fitted(text.values[kind], longest) for text in texts])
        window = min(self._window, self._config.sliding_window) if kind == "sliding" else self._window
        key, row = torch.arange(longest), positions[:, None, :, None]
        seen = (key < row) & (key >= row - window)
        cos, sin = self._rotation(kind, longest)
        return {
            f"keys_{kind}": keys.transpose(2, 3).contiguous(),
            f"values_{kind}": values,
            f"mask_{kind}": torch.where(seen, 0.0, -torch.inf),
            f"cos_{kind}": cos[positions][:, None],
            f"sin_{kind}": sin[positions][:, None],
        }

    def _rotation(self, kind: str, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [positions, head_dim] of all positions up to `longest`."""
        if kind not in self._rotations or len(self._rotations[kind][0]) <= longest:
            layer = layer_of_kind(self._config, kind)
            rope = next(r for r in self._config.ropes if r.kind == layer.kind)
            frequencies = inverse_frequencies(rope, layer.head_dim)
            pairs = [signed_rotation(frequencies, position) for position in range(longest + 1)]
            cos, sin = (torch.from_numpy(np.concatenate(side, axis=2)[0, 0]) for side in zip(*pairs, strict=True))
            self._rotations[kind] = cos, sin
        return self._rotations[kind]


def record(verifier: Gemma4ForCausalLM, text: Document, device: torch.device) -> Recorded:
    """Run the verifier once over `text`; what it says stays on the CPU, in float32."""
    ids = torch.tensor([text.ids], device=device)
    with torch.no_grad():
        out = verifier(ids, use_cache=False, output_hidden_states=True, return_shared_kv_states=True, logits_to_keep=1)
        embeddings = verifier.get_input_embeddings()(ids)[0].float().cpu()
    shared = {kind_of_layer_type(kind): pair for kind, pair in out.shared_kv_states.items()}
    return Recorded(
        ids[0].cpu(),
        text.prompt_length,
        out.hidden_states[-1][0].float().cpu(),
        embeddings,
        {kind: keys[0].float().cpu() for kind, (keys, _) in shared.items()},
        {kind: values[0].float().cpu() for kind, (_, values) in shared.items()},
    )


def _picked(sources: Sequence[torch.Tensor], indices: torch.Tensor) -> torch.Tensor:
    """Rows `indices` [batch, rows] of each source [length, width], as [batch, 1, rows, width]."""
    return torch.stack([source[index] for source, index in zip(sources, indices, strict=True)])[:, None]


def _fitted(x: torch.Tensor, length: int) -> torch.Tensor:
    """[heads, rows, dim] cut or padded with zeros to `length` rows; no row that counts sees the padding."""
    return F.pad(x[:, :length], (0, 0, 0, max(0, length - x.shape[1])))
