"""A file of observations: what a calibration saw of every tensor on some of the prompts, before a method makes ranges.

Shards of one calibration merge to the very file that one run over all prompts writes. Knows nothing of graphs: which
tensors are tied, given or bounded is told by the caller and kept as names and numbers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from calibration.errors import CalibrationError
from calibration.jsonfile import replace_file
from calibration.observers import BINS, TensorObserver
from calibration.range_methods import ASYMMETRIC_BITS
from calibration.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from calibration.range_methods import RangeMethod

SCHEMA_VERSION = 1
Bounds = tuple[float, float]
_COUNTERS = ("count", "zeros", "nonfinite", "exponent")


@dataclass(frozen=True)
class Subject:
    """What is calibrated, the same in all shards.

    hashes: of checkpoint, keep set and prompts. prompts: how many there are in all. settings: those that shape the
    graph. owners: tensor -> the first of the tensors that it shares a range with. given: tensors whose parameters are
    the checkpoint's. limits: bounds that the graph clips a tensor to. reach: ranges that follow from tables. symmetric:
    bits of the tensors that get symmetric codes; all others get asymmetric ones of 16 bits.
    """

    kind: str
    hashes: Mapping[str, str | None]
    prompts: int
    settings: Mapping[str, int | str | bool | None]
    owners: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Bounds] = field(default_factory=dict)
    limits: Mapping[str, Bounds] = field(default_factory=dict)
    reach: Mapping[str, Bounds] = field(default_factory=dict)
    symmetric: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All of it as canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)


@dataclass(frozen=True, eq=False)
class Observations:
    """Statistics by tensor, over the prompts with the numbers `seen`, in order."""

    subject: Subject
    seen: tuple[int, ...]
    tensors: Mapping[str, TensorObserver]

    def merge(self, other: Observations) -> Observations:
        """Both together. Raises CalibrationError for prompts seen by both, or where the subjects differ."""
        if self.subject.text != other.subject.text:
            mine, theirs = json.loads(self.subject.text), json.loads(other.subject.text)
            differ = sorted(key for key in mine if mine[key] != theirs[key])
            raise CalibrationError(
                f"these shards are not of one calibration, they differ in {', '.join(differ)}; run every shard with "
                "the same checkpoint, prompts, keep set and options"
            )
        twice = sorted(set(self.seen) & set(other.seen))
        if twice:
            raise CalibrationError(f"prompts {twice[:5]} are in two shards; merge every shard once")
        tensors = {name: observer.merge(other.tensors[name]) for name, observer in self.tensors.items()}
        return Observations(self.subject, tuple(sorted({*self.seen, *other.seen})), tensors)

    def own_range(self, name: str, method: RangeMethod) -> Bounds:
        """The range of one tensor by itself, and what tables let it reach."""
        try:
            low, high = method.range_of(self.tensors[name], self.subject.symmetric.get(name))
        except CalibrationError as error:
            raise CalibrationError(f"{name}: {error}") from error
        lowest, highest = self.subject.reach.get(name, (low, high))
        return min(low, lowest), max(high, highest)

    def ranges(self, method: RangeMethod) -> Ranges:
        """Ranges for an export: tied tensors have the union of theirs, those with given parameters have none.

        Raises CalibrationError naming tensors with NaN or infinity.
        """
        broken = sorted(name for name, observer in self.tensors.items() if observer.nonfinite)
        if broken:
            raise CalibrationError(
                f"{len(broken)} tensors hold NaN or infinity, the first are {broken[:5]}; the checkpoint cannot be "
                "calibrated, check that its float model runs"
            )
        calibrated = [name for name in self.tensors if name not in self.subject.given]
        own = {name: self.own_range(name, method) for name in calibrated}
        return Ranges(own, self._source(method)).tied(self.subject.owners)

    def save(self, path: Path) -> None:
        """Write one safetensors file: of histograms only bins that are not empty."""
        names = sorted(self.tensors)
        observers = [self.tensors[name] for name in names]
        filled = [np.flatnonzero(observer.bins) for observer in observers]
        arrays: dict[str, npt.NDArray[Any]] = {
            "bounds": np.array([(one.low, one.high) for one in observers], np.float64).reshape(-1, 2),
            "counters": np.array([[getattr(one, key) for key in _COUNTERS] for one in observers], np.int64),
            "filled": np.array([len(index) for index in filled], np.int64),
            "bin": np.concatenate(filled).astype(np.int32),
            "bin_count": np.concatenate([one.bins[i] for one, i in zip(observers, filled, strict=True)]),
        }
        about = {
            "schema_version": SCHEMA_VERSION,
            "subject": json.loads(self.subject.text),
            "seen": self.seen,
            "names": names,
        }
        replace_file(path, save(arrays, {"hyco": json.dumps(about, sort_keys=True)}))

    @staticmethod
    def load(path: Path) -> Observations:
        """Read what `save` wrote. Raises CalibrationError for an absent, damaged or other file."""
        try:
            with safe_open(path, "numpy") as file:
                about = json.loads((file.metadata() or {})["hyco"])
                if about["schema_version"] != SCHEMA_VERSION:
                    raise ValueError(f"schema_version {about['schema_version']!r}, this version reads {SCHEMA_VERSION}")
                arrays = {name: file.get_tensor(name) for name in ("bounds", "counters", "filled", "bin", "bin_count")}
            tensors = _observers(about["names"], arrays)
            return Observations(_subject(about["subject"]), tuple(about["seen"]), tensors)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, IndexError) as error:
            raise CalibrationError(f"{path}: no file of observations ({error}); calibrate again") from error

    def _source(self, method: RangeMethod) -> str:
        source = f"prompts:{self.subject.hashes['prompts']}"
        if len(self.seen) < self.subject.prompts:
            source += f" ({len(self.seen)} of {self.subject.prompts})"
        if method.name == "minmax":
            return source
        fewer = sorted({bits for bits in self.subject.symmetric.values() if bits != ASYMMETRIC_BITS})
        at_bits = "".join(f", keys and values at {bits} bits" for bits in fewer) if method.name == "mse" else ""
        return f"{source}, {method}{at_bits}"


def merge_all(shards: Sequence[Observations]) -> Observations:
    """All shards together, as one run over their prompts would have seen them. Raises as `Observations.merge`."""
    merged = shards[0]
    for shard in shards[1:]:
        merged = merged.merge(shard)
    return merged


def _observers(names: Iterable[str], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, TensorObserver]:
    ends = np.cumsum(arrays["filled"])
    found = {}
    for row, name in enumerate(names):
        part = slice(ends[row] - arrays["filled"][row], ends[row])
        bins = np.zeros(BINS, np.int64)
        bins[arrays["bin"][part]] = arrays["bin_count"][part]
        low, high = (float(bound) for bound in arrays["bounds"][row])
        counters = dict(zip(_COUNTERS, map(int, arrays["counters"][row]), strict=True))
        observer = TensorObserver(low=low, high=high, bins=bins, **counters)
        if observer.count != observer.zeros + observer.nonfinite + int(bins.sum()):
            raise ValueError(f"the counts of {name!r} do not add up")
        found[name] = observer
    return found


def _subject(fields: dict[str, Any]) -> Subject:
    pairs = {
        key: {name: (float(low), float(high)) for name, (low, high) in fields[key].items()}
        for key in ("given", "limits", "reach")
    }
    return Subject(**{**fields, **pairs})
