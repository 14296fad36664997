"""Activation ranges: for every tensor name the lowest and highest value seen, and what it was seen on.

Knows nothing of how the values were collected, nor of integer types: `export` turns ranges into scales.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from calibration.errors import CalibrationError
from calibration.jsonfile import read_object, write_object

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class Ranges:
    """`bounds`: tensor name -> (low, high); `source`: "prompts:<sha256>" or "synthetic:seed0".

    Raises CalibrationError naming a tensor whose bounds are not finite or have low > high.
    """

    bounds: Mapping[str, tuple[float, float]]
    source: str

    def __post_init__(self) -> None:
        for name, (low, high) in self.bounds.items():
            if not (math.isfinite(low) and math.isfinite(high)):
                raise CalibrationError(f"the range of {name!r} is [{low}, {high}]; look for NaN or inf in the model")
            if low > high:
                raise CalibrationError(f"the range of {name!r} has low {low} above high {high}")
        owned = {name: (float(low), float(high)) for name, (low, high) in sorted(self.bounds.items())}
        object.__setattr__(self, "bounds", MappingProxyType(owned))

    @property
    def count(self) -> int:
        """Number of tensors."""
        return len(self.bounds)

    @cached_property
    def sha256(self) -> str:
        """Hash of source and bounds, as the canonical JSON that `save` writes."""
        canonical = json.dumps([self.source, dict(self.bounds)], sort_keys=True, allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def of(self, name: str) -> tuple[float, float]:
        """(low, high) of a tensor. Raises CalibrationError for one that was not calibrated."""
        if name not in self.bounds:
            raise CalibrationError(f"tensor {name!r} has no range among the {self.count} calibrated; calibrate again")
        return self.bounds[name]

    def merge(self, other: Ranges) -> Ranges:
        """The union: every tensor of either, low and high covering both; the sources are joined by " + "."""
        bounds = dict(self.bounds)
        for name, (low, high) in other.bounds.items():
            known_low, known_high = bounds.get(name, (low, high))
            bounds[name] = (min(low, known_low), max(high, known_high))
        sources = dict.fromkeys([*self.source.split(" + "), *other.source.split(" + ")])
        return Ranges(bounds, " + ".join(sources))

    def tied(self, owners: Mapping[str, str]) -> Ranges:
        """Every tensor with the union of the ranges of those that have the same owner; one without owner is its own."""
        groups: dict[str, list[str]] = {}
        for name in self.bounds:
            groups.setdefault(owners.get(name, name), []).append(name)
        bounds: dict[str, tuple[float, float]] = {}
        for names in groups.values():
            union = min(self.bounds[name][0] for name in names), max(self.bounds[name][1] for name in names)
            bounds |= dict.fromkeys(names, union)
        return Ranges(bounds, self.source)

    def save(self, path: Path) -> None:
        """Write JSON: schema_version, source, tensors (their count), sha256, bounds."""
        header = {"schema_version": SCHEMA_VERSION, "source": self.source, "tensors": self.count}
        write_object(path, {**header, "sha256": self.sha256, "bounds": dict(self.bounds)})

    @staticmethod
    def load(path: Path) -> Ranges:
        """Read what `save` wrote. Raises CalibrationError for an absent, malformed or altered file."""
        fields = read_object(path, SCHEMA_VERSION, CalibrationError)
        bounds, source = fields.get("bounds"), fields.get("source")
        if not isinstance(bounds, dict) or not isinstance(source, str):
            raise CalibrationError(f"{path}: `bounds` must be an object and `source` a text; calibrate again")
        for name, pair in bounds.items():
            numbers = isinstance(pair, list) and len(pair) == 2 and all(type(value) in (int, float) for value in pair)
            if not numbers:
                raise CalibrationError(f"{path}: the range of {name!r} is {pair!r}; [low, high] is needed")
        try:
            ranges = Ranges({name: (low, high) for name, (low, high) in bounds.items()}, source)
        except (CalibrationError, OverflowError) as error:
            raise CalibrationError(f"{path}: {error}") from error
        if fields.get("sha256") != ranges.sha256 or fields.get("tensors") != ranges.count:
            raise CalibrationError(f"{path} does not match its own sha256 or count; it was altered: calibrate again")
        return ranges
