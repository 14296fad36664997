"""Latency without a phone: the HTP compiler's own estimate for a proxy chip, beside the floor that memory sets.

Nothing here is a measurement. Every figure is labelled `LABEL` until a phone gives the factor that relates the two.
"""

from __future__ import annotations

from export.estimate.chart import save_chart
from export.estimate.estimate import Estimate, estimate_bundles
from export.estimate.graph import LABEL, EstimateOptions, GraphEstimate
from export.estimate.proxy import PROXY, VTCM_MB
from export.estimate.round import Round, RoundPart

__all__ = [
    "LABEL",
    "PROXY",
    "VTCM_MB",
    "Estimate",
    "EstimateOptions",
    "GraphEstimate",
    "Round",
    "RoundPart",
    "estimate_bundles",
    "save_chart",
]
