"""What a context binary holds, as qnn-context-binary-utility writes it: the order of its graphs and their inputs.

    {"info": {"graphs": [{"info": {"graphName": "...", "graphInputs": [{"info": {"name": "...",
        "dataType": "QNN_DATATYPE_UFIXED_POINT_16", "dimensions": [1, 8]}}, ...]}}, ...]}}

The order decides which list of inputs belongs to which graph; it is not the order of compiling. The form is taken from
public users of the tool, not run here: another form is an error.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from device_runner.graph_errors import NetRunError

if TYPE_CHECKING:
    from pathlib import Path

    from device_runner.phone_graphs import PhoneGraph

_BITS = re.compile(r"_(8|16|32|64)$")


@dataclass(frozen=True)
class BinaryGraph:
    """A graph in a binary: its name and its inputs, name -> bytes."""

    name: str
    input_bytes: dict[str, int]


def read_binary_graphs(path: Path) -> tuple[BinaryGraph, ...]:
    """The graphs in the JSON file that the utility wrote, in their order; raises NetRunError for another form."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return tuple(_graph(entry["info"]) for entry in value["info"]["graphs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NetRunError(
            f"qnn-context-binary-utility wrote another form than expected ({type(error).__name__}: {error}); this "
            "release knows info.graphs[].info with graphName and graphInputs"
        ) from error


def place_in_binary(graph: PhoneGraph, graphs: tuple[BinaryGraph, ...]) -> int:
    """Which graph of its binary a graph is, counted from 0; its inputs must be the manifest's.

    Raises:
        NetRunError: it is not in there, or takes other inputs.
    """
    names = [one.name for one in graphs]
    if names.count(graph.qnn_name) != 1:
        raise NetRunError(f"{graph.binary} holds the graphs {names}, not {graph.qnn_name!r} once: export again")
    place = names.index(graph.qnn_name)
    stated = {tensor.name: tensor_bytes(tensor.dtype, tensor.shape) for tensor in graph.info.inputs}
    found = graphs[place].input_bytes
    if found != stated:
        differing = sorted(name for name in found.keys() | stated.keys() if found.get(name) != stated.get(name))
        shown = ", ".join(f"{name} ({found.get(name)} bytes, the manifest {stated.get(name)})" for name in differing)
        raise NetRunError(f"{graph.label}: inputs in {graph.binary.name} differ from the manifest's: {shown}")
    return place


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor as it lies in a file."""
    return math.prod(shape) * np.dtype(dtype).itemsize


def _graph(info: dict[str, Any]) -> BinaryGraph:
    inputs = [entry["info"] for entry in info["graphInputs"]]
    return BinaryGraph(str(info["graphName"]), {str(tensor["name"]): _bytes(tensor) for tensor in inputs})


def _bytes(tensor: dict[str, Any]) -> int:
    kind = str(tensor["dataType"])
    bits = _BITS.search(kind)
    if bits is None:
        raise ValueError(f"the data type {kind!r} of {tensor['name']!r} is not known")
    return math.prod(int(size) for size in tensor["dimensions"]) * int(bits.group(1)) // 8
