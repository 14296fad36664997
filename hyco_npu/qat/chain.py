"""The head run for many rows: its trunk with any set of weights, teacher-forced or on its own drafts.

The trunk is export's own static module; its output layer is applied apart, to the rows that count alone, for it is most
of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from export.checkpoint.mtp import MtpConfig
    from export.graphs.mtp import MtpHead
    from hyco_npu.qat.data import RowBatch

OUTPUT_LAYER = "lm_head.weight"
Weights = dict[str, torch.Tensor]
"""The linear layers' weights [out, in] by the static module's names; the output layer is OUTPUT_LAYER."""


@dataclass(frozen=True)
class Centroids:
    """The centroid head's choice of tokens: rows [centroids, hidden], the tokens [centroids, each] behind them."""

    rows: torch.Tensor
    tokens: torch.Tensor
    top_k: int

    def to(self, device: torch.device) -> Centroids:
        """The same on `device`."""
        return Centroids(self.rows.to(device), self.tokens.to(device), self.top_k)

    def unscored(self, hidden: torch.Tensor) -> torch.Tensor:
        """Which of the vocabulary's tokens the head leaves out for hidden [n, width]: bool [n, vocabulary]."""
        chosen = F.linear(hidden, self.rows).topk(self.top_k).indices
        left_out = torch.ones(len(hidden), self.tokens.numel(), dtype=torch.bool, device=hidden.device)
        return left_out.scatter_(1, self.tokens[chosen].flatten(1), False)


class Trunk:
    """Everything of a head but its output layer: norms, layer scalars and shapes, which no training changes.

    The head given is used up: `weights` takes its linear layers' weights, and its output layer becomes an identity.
    """

    def __init__(self, head: MtpHead, centroids: Centroids | None = None) -> None:
        self.centroids = centroids
        self.weights: Weights = {
            name: parameter.detach() for name, parameter in head.named_parameters() if parameter.ndim == 2
        }
        self._module: nn.Module = head
        self._module.set_submodule("lm_head", nn.Identity())

    def frozen(self) -> dict[str, torch.Tensor]:
        """Norm weights and layer scalars, by name."""
        state = self._module.state_dict()
        return {name: tensor for name, tensor in state.items() if name not in self.weights}

    def step(
        self, weights: Mapping[str, torch.Tensor], batch: RowBatch, embedding: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One chain step: (next hidden [batch, 1, rows, backbone], input of the output layer [batch, rows, hidden])."""
        inner = {name: weight for name, weight in weights.items() if name != OUTPUT_LAYER}
        arguments = {"embedding": embedding, "hidden": hidden, **batch.contexts}
        following, last = torch.func.functional_call(self._module, inner, kwargs=arguments)
        return following, last[:, 0]

    def forced(self, weights: Mapping[str, torch.Tensor], batch: RowBatch) -> Iterator[torch.Tensor]:
        """Inputs of the output layer [batch, rows, hidden] at steps 1..K: the text's tokens, its own hidden state."""
        hidden = batch.hidden
        for embedding in batch.embeddings:
            hidden, last = self.step(weights, batch, embedding, hidden)
            yield last

    def drafts(
        self,
        weights: Mapping[str, torch.Tensor],
        batch: RowBatch,
        embed: Callable[[torch.Tensor], torch.Tensor],
        centroids: Centroids | None = None,
    ) -> torch.Tensor:
        """Greedy tokens [K, batch, rows] of every row's chain, fed with its own drafts; `embed` scales as the server.

        `centroids` leaves out the tokens that a centroid head does not score.
        """
        embedding, hidden, drafted = batch.embeddings[0], batch.hidden, []
        for _ in batch.embeddings:
            hidden, last = self.step(weights, batch, embedding, hidden)
            flat = last.flatten(0, 1)
            tokens = output_logits(flat, weights[OUTPUT_LAYER], centroids).argmax(-1).view(last.shape[:2])
            drafted.append(tokens)
            embedding = embed(tokens)[:, None]
        return torch.stack(drafted)


def output_logits(hidden: torch.Tensor, weight: torch.Tensor, centroids: Centroids | None) -> torch.Tensor:
    """Logits [n, vocabulary] of hidden [n, width]; tokens that a centroid head does not score have -inf."""
    logits = F.linear(hidden, weight)
    return logits if centroids is None else logits.masked_fill(centroids.unscored(hidden), -torch.inf)


def centroids_of(config: MtpConfig, state: Mapping[str, torch.Tensor]) -> Centroids | None:
    """The centroid head of a checkpoint with `use_ordered_embeddings`; None for a dense one."""
    shape = config.centroids
    if shape is None:
        return None
    ordering = state["masked_embedding.token_ordering"].view(shape.count, -1)
    return Centroids(state["masked_embedding.centroids.weight"], ordering, shape.top_k)
