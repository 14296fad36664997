"""How near two engines' outputs are: cosine, signal to quantisation noise, agreement of the top token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from export.mtp.samples import Outputs


@dataclass(frozen=True)
class Stage:
    """One engine against the one before it.

    cosine: of each output over all samples at once, the lower of logits and next hidden state. lowest_cosine: that of
    the worst single sample. sqnr_db and top1_agreement are over the logits.
    """

    name: str
    reference: str
    samples: int
    cosine: float
    lowest_cosine: float
    sqnr_db: float
    top1_agreement: float
    max_abs_error: float


def compare(name: str, outputs: Outputs, reference_name: str, reference: Outputs) -> Stage:
    """Figures of `outputs` against `reference`, both over the same samples."""
    pairs = ((outputs.logits, reference.logits), (outputs.hidden, reference.hidden))
    agreement = np.mean(outputs.logits.argmax(-1) == reference.logits.argmax(-1))
    return Stage(
        name=name,
        reference=reference_name,
        samples=len(reference.logits),
        cosine=min(cosine(ours, wanted) for ours, wanted in pairs),
        lowest_cosine=min(cosine(a, b) for ours, wanted in pairs for a, b in zip(ours, wanted, strict=True)),
        sqnr_db=sqnr_db(reference.logits, outputs.logits),
        top1_agreement=float(agreement),
        max_abs_error=float(max(np.abs(ours - wanted).max() for ours, wanted in pairs)),
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of two vectors in float64; 0 where either has no length or a number that is not finite."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if np.isfinite(norms) and norms > 0 else 0.0


def sqnr_db(signal: np.ndarray, noisy: np.ndarray) -> float:
    """10 log10(power of the signal / power of the difference) in dB, capped at 200 where nothing differs."""
    power = float(np.square(signal.astype(np.float64)).mean())
    noise = float(np.square(signal.astype(np.float64) - noisy).mean())
    if power == 0 or not np.isfinite(noise):
        return 0.0
    return min(200.0, 10 * float(np.log10(power / noise))) if noise > 0 else 200.0
