"""How much of a text a keep set holds: shares by category, and the curve over the set's size.

share = kept tokens / tokens, every occurrence counted. What is measured are the tokens that a drafter has to draft, the
response tokens; prompts stand in for them where there are no responses, and the record says so.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.errors import KeepSetError
from calibration.jsonfile import read_object, replace_file, write_object
from calibration.keepset import KeepSet, count_tokens, most_frequent, ranked
from calibration.prompts import encode_prompt, read_prompt_file
from calibration.responses import read_responses

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt
    from transformers import PreTrainedTokenizerBase

SCHEMA_VERSION = 1
RESPONSE_TOKENS = "response tokens"
PROMPT_TOKENS = "prompt tokens"
UNCATEGORISED = "uncategorised"
_CURVE_POINTS = 100


@dataclass(frozen=True)
class Text:
    """Token lists of one file with their categories; `kind` is RESPONSE_TOKENS or PROMPT_TOKENS."""

    file: str
    sha256: str
    kind: str
    sequences: tuple[tuple[str | None, tuple[int, ...]], ...]

    @property
    def origin(self) -> dict[str, object]:
        """What a record says of it."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "kind": self.kind,
            "sequences": len(self.sequences),
            "tokens": sum(len(ids) for _, ids in self.sequences),
        }


def prompt_text(path: Path, tokenizer: PreTrainedTokenizerBase, *, chat: bool) -> Text:
    """The tokens of a prompt file, as `encode_prompt` gives them to the verifier."""
    file = read_prompt_file(path)
    sequences = [(p.category, tuple(encode_prompt(tokenizer, p, chat=chat))) for p in file.prompts]
    return Text(file.name, file.sha256, PROMPT_TOKENS, tuple(sequences))


def response_text(path: Path) -> Text:
    """The response tokens of a file of responses; its prompts' tokens are not among them."""
    file = read_responses(path)
    sequences = [(response.category, response.response_token_ids) for response in file.responses]
    return Text(file.name, file.sha256, RESPONSE_TOKENS, tuple(sequences))


@dataclass(frozen=True)
class Share:
    """`kept` of `tokens` tokens are in the keep set; `share` is None where there are none."""

    tokens: int
    kept: int
    share: float | None


@dataclass(frozen=True)
class Coverage:
    """Shares of the tokens of `kind`, in all and by category (in alphabetical order)."""

    kind: str
    total: Share
    categories: dict[str, Share]


@dataclass(frozen=True)
class Curve:
    """`shares` of the tokens that a set of each of `sizes` would hold; `held_out` likewise, for texts not counted."""

    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    held_out: tuple[float, ...] | None


@dataclass(frozen=True)
class CountedSet:
    """A keep set with what was counted for it, how many of its tokens occur there, and what it covers."""

    keep_set: KeepSet
    counted: tuple[Text, ...]
    held_out_text: Text | None
    required: int
    occurring: int
    coverage: Coverage
    held_out: Coverage | None
    curve: Curve

    @property
    def record(self) -> dict[str, Any]:
        """The fields of a coverage file."""
        return {
            "schema_version": SCHEMA_VERSION,
            "keep_set_sha256": self.keep_set.sha256,
            "size": self.keep_set.size,
            "vocab_size": self.keep_set.vocab_size,
            "required": self.required,
            "occurring": self.occurring,
            "counted": [text.origin for text in self.counted],
            "coverage": asdict(self.coverage),
            "held_out_text": self.held_out_text.origin if self.held_out_text else None,
            "held_out": asdict(self.held_out) if self.held_out else None,
            "curve": asdict(self.curve),
        }


def count_keep_set(
    texts: Sequence[Text], held_out: Text | None, size: int, required_ids: set[int], vocab_size: int
) -> CountedSet:
    """The `size` most frequent tokens of `texts`, with all `required_ids`, and what they cover.

    Coverage is that of the responses among `texts`, or of all where there are none, and of `held_out`. Raises
    KeepSetError for an id outside the vocabulary and a size that cannot be.
    """
    counts = _counts(texts, vocab_size)
    keep_set = most_frequent(counts, size, required_ids, vocab_size)
    measured = [text for text in texts if text.kind == RESPONSE_TOKENS] or list(texts)
    order = ranked(counts, required_ids, vocab_size)
    sizes = curve_sizes(max(1, len(required_ids)), size, vocab_size)
    return CountedSet(
        keep_set=keep_set,
        counted=tuple(texts),
        held_out_text=held_out,
        required=len(required_ids),
        occurring=int(np.count_nonzero(counts[keep_set.token_ids])),
        coverage=measure_coverage(keep_set, measured),
        held_out=measure_coverage(keep_set, [held_out]) if held_out else None,
        curve=Curve(
            sizes,
            curve_shares(order, _counts(measured, vocab_size), sizes),
            curve_shares(order, _counts([held_out], vocab_size), sizes) if held_out else None,
        ),
    )


def measure_coverage(keep_set: KeepSet, texts: Sequence[Text]) -> Coverage:
    """Shares of `texts` (of one kind) that `keep_set` holds."""
    kept = np.zeros(keep_set.vocab_size, dtype=bool)
    kept[keep_set.token_ids] = True
    found: dict[str, list[int]] = {}
    for category, ids in (sequence for text in texts for sequence in text.sequences):
        pair = found.setdefault(category or UNCATEGORISED, [0, 0])
        pair[0] += len(ids)
        pair[1] += int(kept[list(ids)].sum())
    categories = {name: _share(*found[name]) for name in sorted(found)}
    total = _share(sum(pair[0] for pair in found.values()), sum(pair[1] for pair in found.values()))
    return Coverage(texts[0].kind, total, categories)


def curve_sizes(smallest: int, size: int, vocab_size: int) -> tuple[int, ...]:
    """Rising sizes from `smallest` to the whole vocabulary, evenly spread by ratio, with `size` among them."""
    spread = np.geomspace(smallest, vocab_size, _CURVE_POINTS).round().astype(int).tolist()
    return tuple(sorted({*spread, size}))


def curve_shares(
    order: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], sizes: Sequence[int]
) -> tuple[float, ...]:
    """Share of `counts` [vocab_size] that the first n ids of `order` [vocab_size] hold, for each n of `sizes`."""
    held = counts[order].cumsum()
    return tuple(float(held[size - 1] / max(held[-1], 1)) for size in sizes)


def coverage_path(keep_set: Path) -> Path:
    """Where the coverage of the keep set at this path is recorded."""
    return keep_set.with_suffix(".coverage.json")


def save_coverage(counted: CountedSet, path: Path) -> None:
    """Write the record as JSON."""
    write_object(path, counted.record)


def load_coverage(path: Path, keep_set: KeepSet) -> dict[str, Any]:
    """The record at `path`. Raises KeepSetError where it is damaged or belongs to another set than `keep_set`."""
    fields = read_object(path, SCHEMA_VERSION, KeepSetError)
    if fields.get("keep_set_sha256") != keep_set.sha256:
        raise KeepSetError(
            f"{path} is the coverage of the set {fields.get('keep_set_sha256')!r}, not of {keep_set.sha256}; build the "
            "keep set again, or remove this file"
        )
    return fields


def save_curve(counted: CountedSet, path: Path) -> None:
    """Write the coverage curve as a PNG, over an older one."""
    from matplotlib.figure import Figure

    curve, size = counted.curve, counted.keep_set.size
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(curve.sizes, curve.shares, color="#2f6fb0", label=f"counted text, {counted.coverage.kind}")
    if curve.held_out is not None and counted.held_out is not None:
        axes.plot(curve.sizes, curve.held_out, color="#c0562f", label=f"held out, {counted.held_out.kind}")
    axes.axvline(size, color="#9aa5b1", linestyle="--", label=f"{size:,} tokens kept")
    axes.set_xscale("log")
    axes.set_xlabel(f"tokens kept of {counted.keep_set.vocab_size:,}")
    axes.set_ylabel("share of tokens covered")
    axes.grid(alpha=0.3)
    axes.set_title("Coverage over keep-set size", fontsize="medium")
    axes.legend(fontsize="small", loc="lower right")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    replace_file(path, picture.getvalue())


def _counts(texts: Sequence[Text], vocab_size: int) -> npt.NDArray[np.int64]:
    return count_tokens((ids for text in texts for _, ids in text.sequences), vocab_size)


def _share(tokens: int, kept: int) -> Share:
    return Share(tokens, kept, kept / tokens if tokens else None)
