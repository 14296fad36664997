"""Errors of benchmarks.

HycoError
└── BenchError               the work failed
    └── MeasurementError     a measurement that no figure can be computed from
"""

from __future__ import annotations

from quant.errors import HycoError


class BenchError(HycoError):
    """A benchmark failed; the message says where."""


class MeasurementError(BenchError):
    """A measurement holds no blocks, or numbers that are none."""
