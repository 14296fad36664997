"""How well one form of the weights drafts on the validation texts, prompt by prompt.

KL and agreement are over all chain steps on the verifier's greedy text, teacher-forced. Accepted tokens per round are
those of greedy chains of K tokens under the exact rule: against greedy text, and against text sampled at temperature 1,
where a draft token is accepted exactly if the verifier's own draw is that token. All in float32 with float activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from export.mtp.chain import CHAIN_LENGTH
from hyco_npu.family.evaluate import Acceptance, count_rounds
from hyco_npu.qat.chain import OUTPUT_LAYER, output_logits
from hyco_npu.qat.loss import kl_rows, row_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from hyco_npu.qat.chain import Centroids, Trunk, Weights
    from hyco_npu.qat.data import Recorded, RowBatch, RowBuilder
    from hyco_npu.qat.processes import Processes

METRICS = ("kl", "top1", "accepted_greedy", "accepted_sampled")
Measured = dict[str, Acceptance]
"""Metric -> (sum, count) of every prompt: nats, agreements or accepted tokens over predictions or rounds."""
_FIGURES = 5


@dataclass(frozen=True)
class Form:
    """One form of the head: its linear weights in float32, what they take in bytes, the centroids it selects by."""

    name: str
    bits: int
    weights: Weights
    size_bytes: int
    centroids: Centroids | None = None


@dataclass(frozen=True)
class Ruler:
    """What every form is measured with: the original head, the texts, and `embed`, the server's scaled embedding.

    `sampled` holds the prompts in the order of `greedy`, as often as there are samples of each.
    """

    trunk: Trunk
    builder: RowBuilder
    greedy: Sequence[Recorded]
    sampled: Sequence[Recorded]
    embed: Callable[[torch.Tensor], torch.Tensor]
    processes: Processes

    def measure(self, form: Form) -> Measured:
        """All metrics of `form`."""
        greedy = self._figures(form, self.greedy)
        sampled = self._figures(form, self.sampled).reshape(-1, *greedy.shape).sum(0)
        kl, agreed, predictions, accepted, rounds = greedy.T
        return {
            "kl": Acceptance(kl, predictions),
            "top1": Acceptance(agreed, predictions),
            "accepted_greedy": Acceptance(accepted, rounds),
            "accepted_sampled": Acceptance(sampled[:, 3], sampled[:, 4]),
        }

    def glance(self, form: Form) -> tuple[float, float]:
        """KL and accepted tokens per round on the greedy texts alone."""
        kl, _, predictions, accepted, rounds = self._figures(form, self.greedy).sum(0)
        return float(kl / predictions), float(accepted / rounds)

    def _figures(self, form: Form, texts: Sequence[Recorded]) -> np.ndarray:
        """float64 [texts, (KL, agreements, predictions, accepted, rounds)]; zeros for an answer of one token."""
        device = self.processes.device
        table = torch.zeros(len(texts), _FIGURES, dtype=torch.float64)
        with torch.no_grad():
            for index in self.processes.share(range(len(texts))):
                text = texts[index]
                if len(text.rows):
                    batch = self.builder.batch([text], [text.rows]).to(device)
                    figures = *self._forced(form, batch), *self._rounds(form, text, batch)
                    table[index] = torch.tensor(figures, dtype=torch.float64)
        (whole,) = self.processes.sum([table.to(device)])
        array: np.ndarray = whole.cpu().numpy()
        return array

    def _forced(self, form: Form, batch: RowBatch) -> tuple[float, float, int]:
        original, kl, agreed = self.trunk.weights, 0.0, 0
        student, teacher = (
            torch.cat([last[c] for last, c in zip(self.trunk.forced(weights, batch), batch.counted, strict=True)])
            for weights in (form.weights, original)
        )
        for rows in row_blocks(len(student), len(original[OUTPUT_LAYER])):
            wanted = output_logits(teacher[rows], original[OUTPUT_LAYER], self.trunk.centroids).softmax(-1)
            logits = output_logits(student[rows], form.weights[OUTPUT_LAYER], form.centroids)
            kl += float(kl_rows(logits.log_softmax(-1), wanted).sum(dtype=torch.float64))
            agreed += int((wanted.argmax(-1) == logits.argmax(-1)).sum())
        return kl, agreed, batch.count

    def _rounds(self, form: Form, text: Recorded, batch: RowBatch) -> tuple[int, int]:
        """(accepted tokens, rounds) of decoding the text with the form's greedy chains."""
        drafts = self.trunk.drafts(form.weights, batch, self.embed, form.centroids)[:, 0].cpu()
        matches = torch.zeros(len(text.ids), dtype=torch.long)
        matches[text.rows] = matched_prefix(drafts, text.ids, text.rows)
        return count_rounds(matches.tolist(), text.prompt_length)


def matched_prefix(drafts: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """How many tokens [rows] of each chain [K, rows] begun at a position in `rows` are those of the text `ids`."""
    beyond = F.pad(ids, (0, CHAIN_LENGTH), value=-1)
    future = torch.stack([beyond[rows + 1 + step] for step in range(CHAIN_LENGTH)])
    return (drafts == future).long().cumprod(0).sum(0)
