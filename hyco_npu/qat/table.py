"""The table that a user decides by: every form of the weights, intervals, and in words whether training helped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyco_npu.family.evaluate import acceptance_lost, bootstrap_interval
from hyco_npu.qat.evaluate import METRICS, Form
from hyco_npu.qat.options import WEIGHT_TYPES
from quant.weights import Clip, quantize_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hyco_npu.qat.chain import Centroids, Weights
    from hyco_npu.qat.evaluate import Measured
    from quant.weights import QuantizedWeight

ORIGINAL = "bf16"
_SCALE_BYTES = 4
_BF16_BYTES = 2
_WIDE_BITS = 8


def names_of(bits: int) -> tuple[str, str, str]:
    """The forms of `bits` bits: rounded to the nearest code, with the clip search, trained."""
    return f"W{bits} round-to-nearest", f"W{bits} clip search", f"W{bits} QAT"


def original_form(weights: Weights, centroids: Centroids | None) -> Form:
    """The head as released."""
    return Form(ORIGINAL, 16, weights, sum(w.numel() * _BF16_BYTES for w in weights.values()), centroids)


def quantized_form(name: str, codes: Mapping[str, QuantizedWeight]) -> Form:
    """A form whose weights are `codes` times their scales, scored over the whole vocabulary as the NPU graph is."""
    bits = next(iter(codes.values())).dtype.bits
    size = sum((w.codes.numel() * bits + 7) // 8 + w.scale.numel() * _SCALE_BYTES for w in codes.values())
    return Form(name, bits, {key: weight.dequantize() for key, weight in codes.items()}, size)


def untrained_forms(weights: Weights, bits: int) -> list[Form]:
    """W8, and `bits` bits to the nearest code and with the clip search."""
    nearest, searched, _ = names_of(bits)
    wanted = ((f"W{_WIDE_BITS}", _WIDE_BITS, Clip.MSE), (nearest, bits, Clip.NONE), (searched, bits, Clip.MSE))
    return [
        quantized_form(
            name, {key: quantize_weight(weight, WEIGHT_TYPES[width], clip) for key, weight in weights.items()}
        )
        for name, width, clip in wanted
    ]


def table_rows(measured: Sequence[tuple[Form, Measured]], seed: int) -> list[dict[str, object]]:
    """One row a form; the first is what the others are compared with, on the same prompts.

    A metric has its value, `_ci95`, and `_minus_bf16` with `_minus_bf16_ci95`: 95 % intervals of a bootstrap over
    prompts.
    """
    reference = measured[0][1]
    rows: list[dict[str, object]] = []
    for form, figures in measured:
        row: dict[str, object] = {"weights": form.name, "bits": form.bits, "size_bytes": form.size_bytes}
        for metric in METRICS:
            own = figures[metric]
            row[metric] = float(own.accepted.sum() / own.rounds.sum())
            row[f"{metric}_ci95"] = list(bootstrap_interval(own.accepted, own.rounds, seed))
            row |= acceptance_lost(f"{metric}_minus_{ORIGINAL}", own, reference[metric], seed)
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Difference:
    """What one form has more than another on the same prompts, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def difference(after: Measured, before: Measured, metric: str, seed: int) -> Difference:
    """`after` minus `before`."""
    found = acceptance_lost("d", after[metric], before[metric], seed)
    interval = found["d_ci95"]
    assert isinstance(interval, list)
    return Difference(float(str(found["d"])), *interval)


@dataclass(frozen=True)
class Verdict:
    """Whether training helped against the clip search, in accepted tokens per round on greedy text, and in words.

    `recovered` is the share that training wins back of the acceptance that rounding to nearest loses; None where that
    loss is too small to tell from 0.
    """

    helped: bool
    recovered: float | None
    gained: Difference
    lost_by_rounding: Difference
    text: str


def judge(measured: Mapping[str, Measured], bits: int, seed: int) -> Verdict:
    """Compare the trained weights with those that need no training; `measured` by form name."""
    nearest, searched, trained = (measured[name] for name in names_of(bits))
    metric = "accepted_greedy"
    gained = difference(trained, searched, metric, seed)
    lost = difference(measured[ORIGINAL], nearest, metric, seed)
    regained = difference(trained, nearest, metric, seed)
    closer = difference(trained, searched, "kl", seed)
    recovered = regained.value / lost.value if lost.low > 0 else None
    if gained.low > 0:
        first = f"QAT helped: {gained} accepted tokens per round over the clip search"
    elif gained.high < 0:
        first = f"QAT hurt: {gained} accepted tokens per round against the clip search; do not use it"
    else:
        first = f"QAT did not help acceptance as far as these prompts can tell: {gained} over the clip search"
    lines = [f"{first}; KL to the original head {closer} nats."]
    if recovered is None:
        lines.append(
            f"Rounding {bits} bits to nearest loses {lost}: too little to tell what training wins back; "
            "give more --validation prompts, or see --bits 3 and --bits 2."
        )
    else:
        lines.append(f"Of the {lost} that rounding to nearest loses, QAT wins back {recovered:.0%}.")
    return Verdict(gained.low > 0, recovered, gained, lost, " ".join(lines))
