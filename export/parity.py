"""How near two engines' outputs are, stage by stage: cosine, signal to quantisation noise, agreement of top tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

SIMULATOR_COSINE = 0.9999
"""Below this the compiled graph is not the graph that was quantised."""
CPU_STAGE, SIMULATOR_STAGE = "qdq_cpu", "htp_simulator"
_LOGITS = "logits"


@dataclass(frozen=True)
class Stage:
    """One engine against the one before it.

    cosine: of each output over all samples at once, the lowest of all outputs. lowest_cosine: that of the worst single
    sample. sqnr_db and top1_agreement are over the logits; without any, the first is over all outputs, the second None.
    """

    name: str
    reference: str
    samples: int
    cosine: float
    lowest_cosine: float
    sqnr_db: float
    top1_agreement: float | None
    max_abs_error: float


@dataclass(frozen=True)
class CheckResult:
    """Stages in order; `not_run` names the ones this host cannot run, with the reason.

    `problems` are files that are not what the manifest says; nothing is run on a bundle that has any.
    """

    stages: list[Stage]
    not_run: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all files are intact and the simulator, where it ran, agrees with the CPU."""
        simulated = [stage for stage in self.stages if stage.name.endswith(SIMULATOR_STAGE)]
        return all(stage.cosine >= SIMULATOR_COSINE for stage in simulated) and not self.problems


def compare(
    name: str, outputs: Mapping[str, np.ndarray], reference_name: str, reference: Mapping[str, np.ndarray]
) -> Stage:
    """Figures of `outputs` against `reference`: arrays [samples, width] of the same samples, by shared name."""
    shared = {key: (outputs[key], array) for key, array in reference.items() if key in outputs}
    pairs = list(shared.values())
    judged = [shared[_LOGITS]] if _LOGITS in shared else pairs
    ours, wanted = (np.concatenate([pair[side].ravel() for pair in judged]) for side in (0, 1))
    agreement = None
    if _LOGITS in shared:
        found, right = shared[_LOGITS]
        agreement = float(np.mean(found.argmax(-1) == right.argmax(-1)))
    return Stage(
        name=name,
        reference=reference_name,
        samples=len(pairs[0][1]),
        cosine=min(cosine(found, right) for found, right in pairs),
        lowest_cosine=min(cosine(a, b) for found, right in pairs for a, b in zip(found, right, strict=True)),
        sqnr_db=sqnr_db(wanted, ours),
        top1_agreement=agreement,
        max_abs_error=float(max(np.abs(found - right).max() for found, right in pairs)),
    )


def spread(count: int, limit: int | None) -> list[int]:
    """At most `limit` indices of `count`, evenly spread."""
    if limit is None or limit >= count:
        return list(range(count))
    return [i * count // limit for i in range(limit)]


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
