"""A profile as qai-hub's `download_profile` gives it: its series, its loads, and where its layers ran.

    {"execution_summary": {"all_inference_times": [us, ...], "first_load_time": us, "warm_load_time": us,
                           "estimated_inference_peak_memory": bytes, ...},
     "execution_detail": [{"name", "type", "compute_unit": "NPU", ...}, ...]}

Read from the package's source (`client._profile_pb_to_python_dict`, version 1.2 of the profile and later). A figure
that is not there, or is no number, is an error: nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from device_runner.graph_errors import HubError

if TYPE_CHECKING:
    from collections.abc import Mapping

NPU = "NPU"
_SHOWN_LAYERS = 8
_LOADS = {"first": "first_load_time", "warm": "warm_load_time"}
_PEAK = "estimated_inference_peak_memory"


@dataclass(frozen=True)
class HubProfile:
    """series_ms: the runs as the service lists them. layers: their number on each unit. off_npu: some that are not on
    the NPU, `name (unit)`."""

    series_ms: tuple[float, ...]
    loads_ms: Mapping[str, float]
    peak_memory_bytes: int
    layers: Mapping[str, int]
    off_npu: tuple[str, ...]


def parse_profile(profile: Mapping[str, Any], label: str) -> HubProfile:
    """Read a profile; `label` names it in messages.

    Raises:
        HubError: a part or a figure is missing, or is none.
    """
    summary, detail = profile.get("execution_summary"), profile.get("execution_detail")
    if not isinstance(summary, dict) or not isinstance(detail, list):
        raise HubError(f"the profile of {label} has the parts {sorted(profile)}: its summary or its layers are missing")
    times = summary.get("all_inference_times")
    if not isinstance(times, list) or len(times) < 2:
        raise HubError(f"the profile of {label} holds no series of run times, but {times!r}: two runs are the least")
    units = [_unit(layer, label) for layer in detail]
    if not units:
        raise HubError(f"the profile of {label} lists no layer, so nothing tells that it ran on the NPU")
    outside = [f"{name} ({unit})" for name, unit in units if unit != NPU]
    return HubProfile(
        series_ms=tuple(_number(time, "all_inference_times", label) / 1e3 for time in times),
        loads_ms={name: _number(summary.get(key), key, label) / 1e3 for name, key in _LOADS.items()},
        peak_memory_bytes=int(_number(summary.get(_PEAK), _PEAK, label)),
        layers=dict(Counter(unit for _, unit in units)),
        off_npu=tuple(outside[:_SHOWN_LAYERS]),
    )


def _unit(layer: object, label: str) -> tuple[str, str]:
    if not isinstance(layer, dict) or not isinstance(layer.get("compute_unit"), str):
        raise HubError(f"the profile of {label} has a layer without a compute unit: {layer!r}")
    return str(layer.get("name")), layer["compute_unit"]


def _number(value: object, name: str, label: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise HubError(f"the profile of {label} has {name} {value!r} where a positive number is expected")
    return float(value)
